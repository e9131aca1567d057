"""Figures of predicted probabilities and classes: reliability diagrams, risk and coverage, confusions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import one_line
from foretoken.report.figures.panels import chosen_panels, few
from foretoken.report.figures.style import COLOURS, INK, Mark, grid, legend, styled, wrapped
from foretoken.report.runs.groups import Results, RunGroup
from foretoken.report.runs.probabilities import Predicted, bins_of, predicted
from foretoken.report.tables.classes import answers_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_DIAGRAMS = 24  # in one figure; a line below says if there are more
COVERAGES = np.linspace(0.02, 1, 99)
MOST_SQUARE = 12  # classes in a picture
_LONGEST_NAME = 18


@styled
def reliability(results: Results) -> Figure | None:
    """Draw accuracy against confidence for every chosen method, over all its seeds."""
    diagrams = [
        (panel, name, group, pooled)
        for panel in chosen_panels(results)
        for name, group in few(panel)
        if (pooled := _pooled(group)) is not None
    ]
    if not diagrams:
        return None
    shown = diagrams[:MOST_DIAGRAMS]
    figure, axes = grid(len(shown), columns=3, height=2.6)
    for (panel, name, group, pooled), ax in zip(shown, axes, strict=True):
        _diagram(ax, pooled, bins_of(group), panel.marks[group.label])
        ax.set_title(wrapped(f"{panel.title}: {name}", 34))
    if len(diagrams) > MOST_DIAGRAMS:
        figure.supxlabel(f"the first {MOST_DIAGRAMS} of {len(diagrams)}", color=INK, fontsize=8)
    return figure


@styled
def coverage_risk(results: Results) -> Figure | None:
    """Draw the share of errors among the most confident predictions, as the mean over seeds."""
    drawn = [
        (panel, lines)
        for panel in chosen_panels(results)
        if (lines := {name: risk for name, group in few(panel) if (risk := _risks(group)) is not None})
    ]
    if not drawn:
        return None
    figure, axes = grid(len(drawn))
    for (panel, lines), ax in zip(drawn, axes, strict=True):
        for name, risk in lines.items():
            mark = panel.marks[name]._asdict()
            ax.plot(COVERAGES, risk, linewidth=1.4, markevery=14, markersize=3.5, label=name, **mark)
        ax.set(title=panel.title, xlabel="coverage", ylabel="risk (share of errors)", xlim=(0, 1))
        ax.set_ylim(bottom=0)
    legend(figure, axes)
    return figure


def _pooled(group: RunGroup) -> Predicted | None:
    predictions = [item for run in group.runs if (item := predicted(run)) is not None]
    if not predictions or len({item.probabilities.shape[1] for item in predictions}) > 1:
        return None
    probabilities, labels = (np.concatenate(parts) for parts in zip(*predictions, strict=True))
    return Predicted(probabilities, labels)


def _diagram(axes: Axes, pooled: Predicted, bins: int, mark: Mark) -> None:
    """Draw the accuracy of each bin, the diagonal, and above them the numbers of predictions."""
    from foretoken.metrics.calibration import reliability_bins

    rows = reliability_bins(*pooled, n_bins=bins)
    # confidences of exactly 1 have a bin without width
    left = [min(row.lower, 1 - 1 / bins) for row in rows]
    accuracy, confidence = [row.accuracy for row in rows], [row.confidence for row in rows]
    axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
    axes.bar(left, accuracy, width=1 / bins, align="edge", color=mark.color, alpha=0.55, linewidth=0)
    axes.scatter(confidence, accuracy, color=mark.color, s=9, zorder=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    counts = axes.inset_axes((0, 1.02, 1, 0.16), sharex=axes)
    counts.bar(left, [row.count for row in rows], width=1 / bins, align="edge", color=mark.color, linewidth=0)
    counts.axis("off")
    total, errors = len(pooled.labels), (pooled.probabilities.argmax(axis=1) != pooled.labels).sum()
    axes.text(0.03, 0.95, f"n = {total}\n{errors} wrong", transform=axes.transAxes, va="top", fontsize=7.5)


def _risks(group: RunGroup) -> NDArray[np.float64] | None:
    """Return the mean over seeds of the risk at each coverage; None without readable predictions."""
    from foretoken.metrics.risk.selective import coverage_risk as curve

    risks = [np.interp(COVERAGES, *curve(*item)) for run in group.runs if (item := predicted(run)) is not None]
    return np.mean(risks, axis=0) if risks else None


@styled
def confusions(results: Results) -> Figure | None:
    """Draw the share of each label's documents that gets each answer; of many classes the most confused."""
    matrices = [
        (answers, counts)
        for task in results.tasks
        if (answers := answers_of(results, task)) is not None and (counts := answers.confusion()) is not None
    ]
    if not matrices:
        return None
    figure, axes = grid(len(matrices), columns=2, height=4.2)
    for (answers, counts), ax in zip(matrices, axes, strict=True):
        kept = _most_confused(counts)
        _draw(ax, counts[np.ix_(kept, kept)], counts.sum(axis=1)[kept], [answers.classes[index] for index in kept])
        ax.set_title(wrapped(f"{answers.group.task}: {results.named(answers.group)}, {answers.split}", 44))
    return figure


def _most_confused(counts: np.ndarray) -> list[int]:
    """Return the indices of the classes with the most errors as label or answer, in their order."""
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
