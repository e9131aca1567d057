"""Expected validation performance: what a search of k trials may be expected to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foretoken.report.figures.panels import Panel, all_panels, method_of
from foretoken.report.figures.style import BAND, Mark, grid, legend, marks, styled, whole_numbers
from foretoken.report.runs.groups import VALIDATION, Group, by
from foretoken.report.tables.scores import greater_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run


@styled
def expected_performance(runs: Sequence[Run]) -> Figure | None:
    """Draw the expected best validation score of k trials, a line per method that was searched."""
    found = [(panel, searched(panel)) for panel in all_panels(runs)]
    found = [(panel, methods) for panel, methods in found if methods]
    if not found:
        return None
    drawn = marks([(method, method) for _, methods in found for method in methods])
    figure, axes = grid(len(found))
    for (panel, methods), one in zip(found, axes, strict=True):
        for method, scores in methods.items():
            _draw(one, method, drawn[method], scores, panel)
        one.set(title=panel.title, xlabel="trials")
        whole_numbers(one)
        panel.label_scores(one, split=VALIDATION)
    legend(figure, axes)
    return figure


def searched(panel: Panel) -> dict[str, list[float]]:
    """Return method -> the validation score of every run, for methods with two candidates or more."""
    methods: dict[str, list[Group]] = by(panel.groups, method_of)
    scores = {
        method: [score for group in groups for score in group.values(panel.metric, VALIDATION)]
        for method, groups in methods.items()
        if len(groups) > 1
    }
    return {method: values for method, values in scores.items() if len(values) > 1}


def _draw(axes: Axes, method: str, mark: Mark, scores: Sequence[float], panel: Panel) -> None:
    from foretoken.metrics.statistics import expected_validation_performance

    mean, std = expected_validation_performance(scores, greater_is_better=greater_is_better(panel.metric))
    trials = range(1, len(mean) + 1)
    axes.plot(trials, mean, color=mark.color, linestyle=mark.linestyle, linewidth=1.5, label=method)
    low, high = (mean - std).clip(min=min(scores)), (mean + std).clip(max=max(scores))
    axes.fill_between(trials, low, high, color=mark.color, alpha=BAND, linewidth=0)
