"""Expected validation performance: what a search of k hyperparameter assignments may be expected to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretoken.metrics.statistics import expected_validation_performance
from foretoken.report.figures.panels import all_panels
from foretoken.report.figures.style import BAND, grid, legend, marks, method_in, styled, whole_numbers
from foretoken.report.runs.groups import VALIDATION, Results, RunGroup, by
from foretoken.report.scores import greater_is_better

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def expected_performance(results: Results) -> Figure | None:
    """Draw the expected best validation score of k assignments, a line per method that was searched.

    An assignment counts once, with the mean of its seeds. The band is one standard deviation of the best of k draws.
    """
    found = [(panel, searched(panel.groups)) for panel in all_panels(results)]
    found = [(panel, lines) for panel, lines in found if lines]
    if not found:
        return None
    drawn = marks([(method_in(line), line) for _, lines in found for line in lines])
    figure, axes = grid(len(found))
    for (panel, lines), one in zip(found, axes, strict=True):
        for name, scores in lines.items():
            mean, std = expected_validation_performance(scores, greater_is_better=greater_is_better(panel.metric))
            numbers = range(1, len(mean) + 1)
            one.plot(numbers, mean, color=drawn[name].color, linestyle=drawn[name].linestyle, linewidth=1.5, label=name)
            ends = np.clip([mean - std, mean + std], min(scores), max(scores))
            one.fill_between(numbers, *ends, color=drawn[name].color, alpha=BAND, linewidth=0)
        one.set(title=panel.title, xlabel="hyperparameter assignments")
        whole_numbers(one)
        panel.label_scores(one, split=VALIDATION)
    legend(figure, axes)
    return figure


def searched(groups: Sequence[RunGroup]) -> dict[str, list[float]]:
    """Return line -> the mean validation score of each assignment, where two or more were measured."""
    lines = by([group for group in groups if group.validation is not None], lambda group: group.line)
    scores = {line: [group.validation or 0.0 for group in alike] for line, alike in lines.items()}
    return {line: found for line, found in scores.items() if len(found) > 1}
