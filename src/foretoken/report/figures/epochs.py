"""What training says while it goes on: learning curves, and the calibration error (Figure 4 of Li et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from foretoken.report.figures.panels import Panel, chosen_panels, deviation, few
from foretoken.report.figures.style import BAND, Mark, grid, legend, styled, thousands, whole_numbers
from foretoken.report.runs.groups import VALIDATION, Results, RunGroup
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = dict[float, tuple[float, float]]  # step or epoch -> mean and standard deviation over seeds


class Course(NamedTuple):
    """What one axes shows: an entry of `epochs` -> a value, over `step` or `epoch`, and what names the values."""

    read: Callable[[Mapping[str, Any]], Any]
    axis: str
    label: Callable[[Axes], object]


@styled
def calibration_error(results: Results) -> Figure | None:
    """Draw the validation ECE after every epoch, a line per method."""
    return _draw(
        results, lambda panel: [Course(_validation("ece"), "epoch", lambda axes: axes.set(ylabel="validation ECE"))]
    )


@styled
def learning_curves(results: Results) -> Figure | None:
    """Draw the training loss and the validation metric over the steps, side by side for every task."""
    return _draw(
        results,
        lambda panel: [
            Course(lambda entry: entry.get("train_loss"), "step", lambda axes: axes.set_ylabel("training loss")),
            Course(_validation(panel.metric), "step", lambda axes: panel.label_scores(axes, split=VALIDATION)),
        ],
    )


def over_seeds(group: RunGroup, course: Course) -> Line:
    """Return mean and standard deviation, at every evaluation, of the seeds that came so far."""
    found: dict[float, list[float]] = {}
    for run in group.parts:
        for entry in run.values.get("epochs") or []:
            place, value = number(entry.get(course.axis)), number(course.read(entry))
            if place is not None and value is not None:
                found.setdefault(round(place, 3), []).append(value)
    return {place: (fmean(found[place]), deviation(found[place])) for place in sorted(found)}


def _draw(results: Results, courses: Callable[[Panel], list[Course]]) -> Figure | None:
    """Draw the courses of every task side by side, where some method has two evaluations."""
    found = []
    for panel in chosen_panels(results):
        drawn = [(course, _lines(panel, course)) for course in courses(panel)]
        if any(len(line) > 1 for _, lines in drawn for line in lines.values()):
            found += [(panel, course, lines) for course, lines in drawn]
    if not found:
        return None
    figure, axes = grid(len(found), columns=2)
    for (panel, course, lines), one in zip(found, axes, strict=True):
        for name, line in lines.items():
            _band(one, name, panel.marks[name], line)
        one.set(title=panel.title, xlabel=course.axis)
        whole_numbers(one)
        one.xaxis.set_major_formatter(thousands)
        course.label(one)
    legend(figure, axes)
    return figure


def _validation(metric: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda entry: (entry.get("validation") or {}).get(metric)


def _lines(panel: Panel, course: Course) -> dict[str, Line]:
    lines = {name: over_seeds(group, course) for name, group in few(panel)}
    return {name: line for name, line in lines.items() if line}


def _band(axes: Axes, name: str, mark: Mark, line: Line) -> None:
    """Draw a mean with its standard deviation around it."""
    x, mean, std = list(line), [mean for mean, _ in line.values()], [std for _, std in line.values()]
    axes.plot(x, mean, label=name, markersize=3.5, linewidth=1.4, **mark._asdict())
    if any(std):
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=mark.color, alpha=BAND, linewidth=0)
