"""How long the documents of each data set are, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretoken.report.figures.style import COLOURS, INK, grid, styled, thousands, wrapped
from foretoken.report.runs.groups import by
from foretoken.report.runs.records import Run, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPLITS = ("train", "validation", "test")


class Lengths(NamedTuple):
    """A data set: its name, the quantiles of its documents' lengths, and where they are cut off."""

    name: str
    quantiles: NDArray[np.float64]
    max_length: float | None


@styled
def document_lengths(runs: Sequence[Run]) -> Figure | None:
    """Draw a violin of the documents' lengths for every data set, with a line where the model's input ends."""
    import seaborn as sns

    found = data_sets(runs)
    if not found:
        return None
    figure, (axes,) = grid(1, height=0.5 + 0.5 * len(found))
    sns.violinplot(
        x=np.concatenate([one.quantiles for one in found]),
        y=np.repeat([one.name for one in found], [len(one.quantiles) for one in found]),
        order=[one.name for one in found],
        color=COLOURS[0],
        inner=None,
        linewidth=0,
        cut=0,
        density_norm="width",
        width=0.8,
        orient="h",
        log_scale=(True, False),
        ax=axes,
    )
    for body in axes.collections:
        body.set_alpha(0.55)
    for row, one in enumerate(found):
        axes.scatter([np.median(one.quantiles)], [row], color=INK, s=12, zorder=3)
        if one.max_length:
            axes.plot([one.max_length] * 2, [row - 0.42, row + 0.42], color=COLOURS[3], linewidth=1.6, zorder=4)
    axes.set(xlabel="tokens per document, before any is cut off", ylabel="", ylim=(len(found) - 0.5, -0.5))
    axes.set_yticks(range(len(found)), [wrapped(one.name, 28) for one in found])
    axes.xaxis.set_major_formatter(thousands)
    axes.grid(axis="y", visible=False)
    return figure


def data_sets(runs: Sequence[Run]) -> list[Lengths]:
    """Return the data sets whose lengths are known, by task, and by model where these see other lengths."""
    found: dict[tuple[str, str], tuple[NDArray[np.float64], float | None]] = {}
    for run in sorted(runs, key=lambda run: (run.task, run.model)):
        quantiles = _quantiles(run)
        if quantiles is not None:
            found.setdefault((run.task, run.model), (quantiles, number(run.values.get("max_length"))))
    several = {task for task, alike in by(found, lambda key: key[0]).items() if len(alike) > 1}
    return [
        Lengths(f"{task}, {model}" if task in several else task, *measured) for (task, model), measured in found.items()
    ]


def _quantiles(run: Run) -> NDArray[np.float64] | None:
    """Return the quantiles of the largest split that has some; lengths of 0 have no logarithm."""
    splits = [(run.values.get("documents") or {}).get(split) or {} for split in SPLITS]
    measured = [split for split in splits if split.get("length_quantiles")]
    if not measured:
        return None
    largest = max(measured, key=lambda split: number(split.get("documents")) or 0)
    values = np.asarray(largest["length_quantiles"], dtype=np.float64)
    values = values[np.isfinite(values)].clip(min=1)
    return values if len(values) > 1 else None
