"""What training says while it goes on: learning curves over steps and seconds, and the calibration error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from foretoken.report.figures.panels import Panel, chosen_panels, few, mean_and_std
from foretoken.report.figures.style import BAND, Mark, grid, legend, styled, thousands, whole_numbers
from foretoken.report.runs.groups import VALIDATION, Group
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run

Reading = Callable[[Mapping[str, Any]], Any]  # an entry of `epochs` -> a value, a number or not
Line = dict[float, tuple[float, float]]  # step, epoch or seconds -> mean and standard deviation over seeds
_AXES = {"epoch": "epoch", "step": "step", "seconds": "seconds of training"}  # key of an entry -> name of the axis


@styled
def calibration_error(runs: Sequence[Run]) -> Figure | None:
    """Draw the validation ECE after every epoch, a line per method."""

    def label(panel: Panel, axes: Axes) -> None:
        axes.set_ylabel("ECE (validation)")
        axes.set_ylim(bottom=0)

    return _over(runs, "epoch", lambda panel: _validation("ece"), label)


@styled
def learning_seconds(runs: Sequence[Run]) -> Figure | None:
    """Draw the validation metric over the seconds of training, of the runs that recorded them."""
    return _over(runs, "seconds", lambda panel: _validation(panel.metric), _label_validation)


@styled
def learning_curves(runs: Sequence[Run]) -> Figure | None:
    """Draw the training loss and the validation metric over the steps, side by side for every task."""
    found = []
    for panel in chosen_panels(runs):
        readings = (lambda entry: entry.get("train_loss"), _validation(panel.metric))
        losses, scores = (_lines(panel, read, "step") for read in readings)
        if _has_course(losses) or _has_course(scores):
            found.append((panel, losses, scores))
    if not found:
        return None
    figure, axes = grid(2 * len(found), columns=2)
    for (panel, losses, scores), left, right in zip(found, axes[::2], axes[1::2], strict=True):
        _draw(left, losses, panel, "step")
        left.set_ylabel("training loss")
        _draw(right, scores, panel, "step")
        _label_validation(panel, right)
    legend(figure, axes)
    return figure


def over_seeds(group: Group, read: Reading, axis: str = "epoch") -> Line:
    """Return mean and standard deviation, at every evaluation, of the seeds that came so far.

    Seeds meet at the same step, or epoch; each takes its own time to it, of which the mean is taken.
    """
    found: dict[float, list[tuple[float, float]]] = {}
    for run in group.parts:
        for entry in run.values.get("epochs") or []:
            met = number(entry.get("epoch" if axis == "epoch" else "step"))
            place, value = number(entry.get(axis)), number(read(entry))
            if met is not None and place is not None and value is not None:
                found.setdefault(round(met, 3), []).append((place, value))
    means = {fmean(place for place, _ in at): mean_and_std([value for _, value in at]) for at in found.values()}
    return {place: means[place] for place in sorted(means)}


def _over(
    runs: Sequence[Run], axis: str, read: Callable[[Panel], Reading], label: Callable[[Panel, Axes], None]
) -> Figure | None:
    """Draw a line per method, in a panel per task where some method has two evaluations."""
    found = [(panel, _lines(panel, read(panel), axis)) for panel in chosen_panels(runs)]
    found = [(panel, lines) for panel, lines in found if _has_course(lines)]
    if not found:
        return None
    figure, axes = grid(len(found))
    for (panel, lines), one in zip(found, axes, strict=True):
        _draw(one, lines, panel, axis)
        label(panel, one)
    legend(figure, axes)
    return figure


def _label_validation(panel: Panel, axes: Axes) -> None:
    panel.label_scores(axes, split=VALIDATION)


def _validation(metric: str) -> Reading:
    return lambda entry: (entry.get("validation") or {}).get(metric)


def _lines(panel: Panel, read: Reading, axis: str) -> dict[str, Line]:
    lines = {name: over_seeds(group, read, axis) for name, group in few(panel)}
    return {name: line for name, line in lines.items() if line}


def _has_course(lines: Mapping[str, Line]) -> bool:
    """Tell whether there is more than a single point to draw."""
    return any(len(line) > 1 for line in lines.values())


def _draw(axes: Axes, lines: Mapping[str, Line], panel: Panel, axis: str) -> None:
    for name, line in lines.items():
        _band(axes, name, panel.marks[name], line)
    axes.set(title=panel.title, xlabel=_AXES[axis])
    if axis != "seconds":
        whole_numbers(axes)
    axes.xaxis.set_major_formatter(thousands)


def _band(axes: Axes, name: str, mark: Mark, line: Line) -> None:
    """Draw a mean with its standard deviation around it."""
    x, mean, std = list(line), [mean for mean, _ in line.values()], [std for _, std in line.values()]
    axes.plot(x, mean, label=name, markersize=3.5, linewidth=1.4, **mark._asdict())
    if any(std):
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=mark.color, alpha=BAND, linewidth=0)
