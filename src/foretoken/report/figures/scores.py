"""Scores over seeds: violins with median and quartiles, and the single seeds as points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretoken.report.figures.panels import Panel, chosen_panels
from foretoken.report.figures.style import grid, styled, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run

SEEDS_OF_A_VIOLIN = 3  # fewer have no distribution to speak of


@styled
def violins(runs: Sequence[Run]) -> Figure | None:
    """Draw the score of every method over its seeds, a panel per task."""
    panels = chosen_panels(runs)
    if not panels:
        return None
    most = max(len(panel.groups) for panel in panels)
    figure, axes = grid(len(panels), columns=1, height=0.75 + 0.36 * most)
    for panel, one in zip(panels, axes, strict=True):
        _draw(panel, one)
    return figure


def _draw(panel: Panel, axes: Axes) -> None:
    import seaborn as sns

    values = {group.label: panel.scores(group) for group in panel.groups}
    spread = {label: scores for label, scores in values.items() if len(set(scores)) >= SEEDS_OF_A_VIOLIN}
    colours = {label: panel.marks[label].color for label in values}
    if spread:
        points = [(score, label) for label, scores in spread.items() for score in scores]
        sns.violinplot(
            x=[score for score, _ in points],
            y=[label for _, label in points],
            hue=[label for _, label in points],
            order=list(values),
            hue_order=list(values),
            palette=colours,
            inner=None,
            linewidth=0,
            density_norm="width",
            width=0.85,
            dodge=False,
            orient="h",
            legend=False,
            ax=axes,
        )
        for body in axes.collections:
            body.set_alpha(0.35)
    for row, (label, scores) in enumerate(values.items()):
        axes.scatter(scores, [row] * len(scores), color=colours[label], s=14, zorder=3)
        if label in spread:
            low, median, high = np.percentile(scores, [25, 50, 75])
            axes.plot([low, high], [row, row], color=colours[label], linewidth=3, zorder=2, solid_capstyle="butt")
            axes.plot([median, median], [row - 0.3, row + 0.3], color=colours[label], linewidth=1.5, zorder=2)
    axes.set(title=panel.title, ylabel="", ylim=(len(values) - 0.5, -0.5))
    axes.set_yticks(range(len(values)), [wrapped(label) for label in values])
    axes.grid(axis="y", visible=False)
    panel.label_scores(axes, axis="x")
