"""What training says while it goes on: learning curves, and the calibration error after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foretoken.report.figures.panels import Panel, chosen_panels, few, mean_and_std
from foretoken.report.figures.style import BAND, Mark, grid, legend, styled, whole_numbers
from foretoken.report.runs.groups import VALIDATION, Group
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run

Reading = Callable[[Mapping[str, Any]], Any]  # an entry of `epochs` -> a value, a number or not
Line = dict[float, tuple[float, float]]  # epoch -> mean and standard deviation over seeds


@styled
def calibration_error(runs: Sequence[Run]) -> Figure | None:
    """Draw the validation ECE after every epoch, a line per method."""
    found = [(panel, _lines(panel, _validation("ece"))) for panel in chosen_panels(runs)]
    found = [(panel, lines) for panel, lines in found if _has_course(lines)]
    if not found:
        return None
    figure, axes = grid(len(found))
    for (panel, lines), one in zip(found, axes, strict=True):
        _draw(one, lines, panel)
        one.set(title=panel.title, ylabel="ECE (validation)")
        one.set_ylim(bottom=0)
    legend(figure, axes)
    return figure


@styled
def learning_curves(runs: Sequence[Run]) -> Figure | None:
    """Draw the training loss and the validation metric, side by side for every task."""
    found = []
    for panel in chosen_panels(runs):
        both = _lines(panel, lambda entry: entry.get("train_loss")), _lines(panel, _validation(panel.metric))
        if any(_has_course(lines) for lines in both):
            found.append((panel, *both))
    if not found:
        return None
    figure, axes = grid(2 * len(found))
    for (panel, losses, scores), left, right in zip(found, axes[::2], axes[1::2], strict=True):
        _draw(left, losses, panel)
        left.set(title=panel.title, ylabel="training loss")
        _draw(right, scores, panel)
        right.set_title(panel.title)
        panel.label_scores(right, split=VALIDATION)
    legend(figure, axes)
    return figure


def over_seeds(group: Group, read: Reading) -> Line:
    """Return mean and standard deviation, at every epoch, of the seeds that came so far."""
    values: dict[float, list[float]] = {}
    for run in group.parts:
        for entry in run.values.get("epochs") or []:
            value, epoch = number(read(entry)), number(entry.get("epoch"))
            if value is not None and epoch is not None:
                values.setdefault(round(epoch, 3), []).append(value)
    return {epoch: mean_and_std(values[epoch]) for epoch in sorted(values)}


def _validation(metric: str) -> Reading:
    return lambda entry: (entry.get("validation") or {}).get(metric)


def _lines(panel: Panel, read: Reading) -> dict[str, Line]:
    lines = {name: over_seeds(group, read) for name, group in few(panel)}
    return {name: line for name, line in lines.items() if line}


def _has_course(lines: Mapping[str, Line]) -> bool:
    """Tell whether there is more than a single point to draw."""
    return any(len(line) > 1 for line in lines.values())


def _draw(axes: Axes, lines: Mapping[str, Line], panel: Panel) -> None:
    for name, line in lines.items():
        _band(axes, name, panel.marks[name], line)
    axes.set_xlabel("epoch")
    whole_numbers(axes)


def _band(axes: Axes, name: str, mark: Mark, line: Line) -> None:
    """Draw a mean with its standard deviation around it."""
    x, mean, std = list(line), [mean for mean, _ in line.values()], [std for _, std in line.values()]
    axes.plot(x, mean, label=name, markersize=3.5, linewidth=1.4, **mark._asdict())
    if any(std):
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=mark.color, alpha=BAND, linewidth=0)
