"""Expected validation performance: what a search of k hyperparameter assignments may be expected to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from foretoken.report.figures.panels import Panel, all_panels, method_of
from foretoken.report.figures.style import BAND, Mark, grid, legend, marks, styled, whole_numbers
from foretoken.report.runs.groups import VALIDATION, Group, by
from foretoken.report.tables.scores import greater_is_better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run


@dataclass(frozen=True)
class Searched:
    """The assignments of one method that was searched.

    Attributes:
        means: per assignment, the mean validation score of its seeds.
        by_seed: the scores of the assignments, in a list for each seed that every assignment was run with.
    """

    means: Sequence[float]
    by_seed: Sequence[Sequence[float]]


@styled
def expected_performance(runs: Sequence[Run]) -> Figure | None:
    """Draw the expected best validation score of k assignments, a line per method that was searched.

    An assignment counts once, with the mean of its seeds. The band is from the lowest to the highest curve of a single
    seed, of those that all assignments were run with.
    """
    found = [(panel, searched(panel.groups)) for panel in all_panels(runs)]
    found = [(panel, methods) for panel, methods in found if methods]
    if not found:
        return None
    drawn = marks([(method, method) for _, methods in found for method in methods])
    figure, axes = grid(len(found))
    for (panel, methods), one in zip(found, axes, strict=True):
        for method, scores in methods.items():
            _draw(one, method, drawn[method], scores, panel)
        one.set(title=panel.title, xlabel="hyperparameter assignments")
        whole_numbers(one)
        panel.label_scores(one, split=VALIDATION)
    legend(figure, axes)
    return figure


def searched(groups: Sequence[Group]) -> dict[str, Searched]:
    """Return method -> its assignments, for methods with two or more that were measured on validation."""
    methods: dict[str, list[Group]] = by(groups, method_of)
    found = {method: _searched(alike) for method, alike in methods.items()}
    return {method: scores for method, scores in found.items() if len(scores.means) > 1}


def _searched(groups: Sequence[Group]) -> Searched:
    scores = [scores for group in groups if (scores := group.by_seed(group.metric, VALIDATION))]
    shared = set.intersection(*(set(one) for one in scores)) if scores else set()
    seeds = sorted(shared, key=lambda seed: -1 if seed is None else seed)
    return Searched([fmean(one.values()) for one in scores], [[one[seed] for one in scores] for seed in seeds])


def _draw(axes: Axes, method: str, mark: Mark, scores: Searched, panel: Panel) -> None:
    curve = _curve(scores.means, panel)
    numbers = range(1, len(curve) + 1)
    axes.plot(numbers, curve, color=mark.color, linestyle=mark.linestyle, linewidth=1.5, label=method)
    if len(scores.by_seed) > 1:
        curves = [_curve(one, panel) for one in scores.by_seed]
        low, high = ([ends(column) for column in zip(*curves, strict=True)] for ends in (min, max))
        axes.fill_between(numbers, low, high, color=mark.color, alpha=BAND, linewidth=0)


def _curve(scores: Sequence[float], panel: Panel) -> list[float]:
    from foretoken.metrics.statistics import expected_validation_performance

    mean, _ = expected_validation_performance(scores, greater_is_better=greater_is_better(panel.metric))
    return mean.tolist()
