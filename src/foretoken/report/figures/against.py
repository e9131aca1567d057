"""Score against prefix length and against trained parameters, and time per step against prefix length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from foretoken.metrics.statistics import mean_interval
from foretoken.report.figures.panels import (
    Panel,
    all_panels,
    best_by_validation,
    chosen_panels,
    mean_and_std,
    method_of,
    prefix_length,
)
from foretoken.report.figures.style import Mark, decades, grid, legend, marks, styled
from foretoken.report.runs.groups import Group, by
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run


@styled
def score_by_length(runs: Sequence[Run]) -> Figure | None:
    """Draw the score of the best candidate of every prefix length, best by validation."""
    return _by_length(runs, lambda panel, groups: panel.scores(best_by_validation(groups)), Panel.label_scores)


@styled
def time_by_length(runs: Sequence[Run]) -> Figure | None:
    """Draw the median time of a training step at every prefix length."""

    def seconds(panel: Panel, groups: Sequence[Group]) -> list[float]:
        found = (step_seconds(run) for group in groups for run in group.runs)
        return [value for value in found if value is not None]

    def label(panel: Panel, axes: Axes) -> None:
        axes.set_ylabel("seconds per step")
        axes.set_ylim(bottom=0)

    return _by_length(runs, seconds, label)


@styled
def score_by_parameters(runs: Sequence[Run]) -> Figure | None:
    """Draw the score of every method, with the interval of its mean, against the parameters that it trains."""
    panels = [panel for panel in chosen_panels(runs) if len({parameters(group) for group in panel.groups} - {None}) > 1]
    if not panels:
        return None
    figure, axes = grid(len(panels))
    for panel, one in zip(panels, axes, strict=True):
        counts = {group.label: parameters(group) for group in panel.groups}
        for group in panel.groups:
            if (count := counts[group.label]) is not None:
                _interval(one, group.label, panel.marks[group.label], count, panel.scores(group))
        one.set(title=panel.title, xlabel="trained parameters", xscale="log", ylim=_readable(panel))
        decades(one, [count for count in counts.values() if count])
        panel.label_scores(one)
    legend(figure, axes)
    return figure


def step_seconds(run: Run) -> float | None:
    """Return the median time of a training step."""
    return number((run.values.get("timings") or {}).get("step_seconds_median"))


def parameters(group: Group) -> float | None:
    """Return how many parameters were trained, at least one of them."""
    return number((group.first.values.get("parameters") or {}).get("trainable")) or None


def _by_length(
    runs: Sequence[Run],
    values: Callable[[Panel, Sequence[Group]], list[float]],
    label: Callable[[Panel, Axes], None],
) -> Figure | None:
    """Draw a line per method over its prefix lengths, in a panel per task where some method has several."""
    found = [(panel, _points(panel, values)) for panel in all_panels(runs)]
    found = [(panel, lines) for panel, lines in found if any(len(line) > 1 for line in lines.values())]
    if not found:
        return None
    drawn = marks([(method, method) for _, lines in found for method in lines])
    figure, axes = grid(len(found))
    for (panel, lines), one in zip(found, axes, strict=True):
        for method, line in lines.items():
            _point(one, method, drawn[method], list(line), [mean_and_std(scores) for scores in line.values()])
        ticks = sorted({length for line in lines.values() for length in line})
        one.set(title=panel.title, xlabel="prefix length")
        one.set_xscale("log", base=2)
        one.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        one.set_xticks([], minor=True)
        label(panel, one)
    legend(figure, axes)
    return figure


def _points(panel: Panel, values: Callable[[Panel, Sequence[Group]], list[float]]) -> dict[str, dict[int, list[float]]]:
    """Return method -> prefix length -> the values over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for method, groups in by(panel.groups, method_of).items():
        lengths = by([group for group in groups if prefix_length(group)], prefix_length)
        line = {length: values(panel, lengths[length]) for length in sorted(lengths)}
        if line := {length: scores for length, scores in line.items() if scores}:
            found[method] = line
    return found


def _interval(axes: Axes, name: str, mark: Mark, x: float, scores: Sequence[float]) -> None:
    """Draw the mean with its 95 % interval; that of a single score is not known."""
    mean, (low, high) = fmean(scores), mean_interval(scores) or (scores[0], scores[0])
    look = {"markersize": 6.5, "elinewidth": 1.3, "capsize": 2.5, "linestyle": "none"}
    axes.errorbar([x], [mean], yerr=[[mean - low], [high - mean]], label=name, **mark._asdict() | look)


def _readable(panel: Panel) -> tuple[float, float]:
    """Return limits that hold every seed; the interval of two seeds, which may be many times as long, is cut off."""
    scores = [score for group in panel.groups for score in panel.scores(group)]
    low, high = min(scores), max(scores)
    ends = [end for group in panel.groups for end in mean_interval(panel.scores(group)) or ()]
    room = max(high - low, 0.01 * abs(high), 1e-6)
    return max(min([low, *ends]), low - room) - 0.08 * room, min(max([high, *ends]), high + room) + 0.08 * room


def _point(axes: Axes, name: str, mark: Mark, x: Sequence[float], means: Sequence[tuple[float, float]]) -> None:
    """Draw means with their standard deviation, joined by a line."""
    y, error = [mean for mean, _ in means], [std for _, std in means]
    axes.errorbar(x, y, yerr=error, label=name, markersize=4.5, linewidth=1.3, capsize=2, **mark._asdict())
