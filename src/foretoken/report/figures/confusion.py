"""Which class is taken for which: a picture per task, of its best method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretoken.errors import one_line
from foretoken.report.figures.style import COLOURS, INK, grid, styled, wrapped
from foretoken.report.runs.groups import Results
from foretoken.report.tables.classes import answers_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SQUARE = 12  # classes in a picture
_LONGEST_NAME = 18


@styled
def confusions(results: Results) -> Figure | None:
    """Draw the share of each label's documents that gets each answer; of many classes, those that are most confused."""
    found = [
        (answers, counts)
        for task in results.tasks
        if (answers := answers_of(results, task)) is not None and (counts := answers.confusion()) is not None
    ]
    if not found:
        return None
    figure, axes = grid(len(found), columns=2, height=4.2)
    for (answers, counts), one in zip(found, axes, strict=True):
        kept = _most_confused(counts)
        _draw(one, counts[np.ix_(kept, kept)], counts.sum(axis=1)[kept], [answers.classes[index] for index in kept])
        one.set_title(wrapped(f"{answers.group.task}: {results.named(answers.group)}, {answers.split}", 44))
    return figure


def _most_confused(counts: np.ndarray) -> list[int]:
    """Return the classes with the most errors of their own and of others, in their order; all of a few."""
    errors = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
    return sorted(np.argsort(-errors, kind="stable")[:MOST_SQUARE].tolist())


def _draw(axes: Axes, counts: np.ndarray, sizes: np.ndarray, names: list[str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("share", [f"{COLOURS[0]}00", f"{COLOURS[0]}cc"])
    shares = counts / np.maximum(sizes, 1)[:, None]
    axes.grid(visible=False)
    axes.pcolormesh(range(len(names)), range(len(names)), shares, cmap=colours, vmin=0, vmax=1, shading="nearest")
    axes.invert_yaxis()
    for (row, column), count in np.ndenumerate(counts):
        if count:
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=INK, fontsize=7.5)
    shown = [one_line(name, _LONGEST_NAME) for name in names]
    axes.set_xticks(range(len(names)), shown, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), shown)
    axes.set(xlabel="answer", ylabel="label")
