"""Validation score and training loss against each option of a method that its candidates differ in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from foretoken.options import is_number
from foretoken.report.figures.panels import Panel, all_panels, best_by_validation, mean_and_std, method_of
from foretoken.report.figures.style import Mark, grid, legend, marks, styled
from foretoken.report.runs.groups import VALIDATION, Group, by
from foretoken.report.runs.labels import differing
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run


@dataclass(frozen=True)
class Searched:
    """One option of one method on one task: its values in order, with the candidates that have each."""

    panel: Panel
    method: str
    option: str
    values: Mapping[str, Sequence[Group]]


@styled
def score_by_option(runs: Sequence[Run]) -> Figure | None:
    """Draw the validation score of every candidate, and a line through the best ones, at every value of an option."""
    return _draw(runs, validation, lambda panel, axes: panel.label_scores(axes, split=VALIDATION))


@styled
def loss_by_option(runs: Sequence[Run]) -> Figure | None:
    """Draw the last training loss of every candidate, and a line through the best ones, at every value of an option."""
    return _draw(runs, training_loss, lambda _, axes: axes.set_ylabel("training loss, last"))


def validation(group: Group) -> list[float]:
    """Return the validation score of every run."""
    return group.values(group.metric, VALIDATION)


def training_loss(group: Group) -> list[float]:
    """Return the last training loss of every run that has one."""
    last = [number((run.values.get("epochs") or [{}])[-1].get("train_loss")) for run in group.runs]
    return [loss for loss in last if loss is not None]


def searched(runs: Sequence[Run]) -> Iterator[Searched]:
    """Yield the options in which the candidates of a method differ; those that are not given are the default."""
    for panel in all_panels(runs):
        for method, groups in by(panel.groups, method_of).items():
            for option in differing([_options(group) for group in groups]):
                yield Searched(panel, method, option, _by_value(groups, option))


def _by_value(groups: Sequence[Group], option: str) -> dict[str, Sequence[Group]]:
    """Return the groups by the value of an option, in the order of the values."""
    given = sorted(((_options(group).get(option), group) for group in groups), key=lambda one: _order(one[0]))
    return {text: [group for _, group in same] for text, same in by(given, lambda one: _text(one[0])).items()}


def _options(group: Group) -> Mapping[str, Any]:
    return group.first.recipe.get("method") or {}


def _order(value: object) -> tuple[bool, float, str]:
    return (False, float(value), "") if is_number(value) else (True, 0.0, str(value))


def _text(value: object) -> str:
    return "default" if value is None else f"{value:g}" if is_number(value) else str(value)


def _draw(
    runs: Sequence[Run], measure: Callable[[Group], list[float]], label: Callable[[Panel, Axes], object]
) -> Figure | None:
    """Draw an axes per task and option where two values or more have been measured."""
    found = [one for one in searched(runs) if sum(any(map(measure, groups)) for groups in one.values.values()) > 1]
    if not found:
        return None
    drawn = marks([(one.method, one.method) for one in found])
    figure, axes = grid(len(found))
    for one, place in zip(found, axes, strict=True):
        _line(place, one, drawn[one.method], measure)
        place.set(title=one.panel.title, xlabel=one.option)
        place.set_xticks(range(len(one.values)), list(one.values))
        label(one.panel, place)
    legend(figure, axes)
    return figure


def _line(axes: Axes, one: Searched, mark: Mark, measure: Callable[[Group], list[float]]) -> None:
    measured = [
        (place, [group for group in groups if measure(group)]) for place, groups in enumerate(one.values.values())
    ]
    measured = [(place, groups) for place, groups in measured if groups]
    best = [mean_and_std(measure(best_by_validation(groups))) for _, groups in measured]
    every = [(place, fmean(measure(group))) for place, groups in measured for group in groups]
    x, y = [place for place, _ in every], [score for _, score in every]
    axes.scatter(x, y, s=9, color=mark.color, alpha=0.4, linewidths=0)
    look = {"markersize": 4.5, "linewidth": 1.3, "capsize": 2}
    places, means, stds = [place for place, _ in measured], [mean for mean, _ in best], [std for _, std in best]
    axes.errorbar(places, means, yerr=stds, label=one.method, **mark._asdict() | look)
