"""What a search for a learning rate saw: the loss that each rate led to, a line per round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foretoken.report.figures.style import COLOURS, INK, MARKERS, grid, legend, styled
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run

Course = dict[int, dict[float, float | None]]  # steps -> rate -> loss; None: not finite


@styled
def rate_search(runs: Sequence[Run]) -> Figure | None:
    """Draw the held-out loss against the learning rate, a panel per run that searched for one."""
    found = [
        (run, courses(run.values["rate_search"])) for run in runs if run.values.get("rate_search", {}).get("tried")
    ]
    if not found:
        return None
    figure, axes = grid(len(found))
    for (run, rounds), one in zip(found, axes, strict=True):
        _draw(one, run.values["rate_search"], rounds)
        one.set_title(run.label)
    legend(figure, axes)
    return figure


def courses(search: Mapping[str, Any]) -> Course:
    """Return the losses of a search as a record holds it: by the steps of its rounds, then by rate."""
    rounds: Course = {}
    for item in search["tried"]:
        rounds.setdefault(item["steps"], {})[item["rate"]] = number(item["loss"])
    return rounds


def _draw(axes: Axes, search: Mapping[str, Any], rounds: Course) -> None:
    start = search["start_loss"]
    for index, (steps, course) in enumerate(rounds.items()):
        known = sorted((rate, loss) for rate, loss in course.items() if loss is not None)
        axes.plot(
            [rate for rate, _ in known],
            [loss for _, loss in known],
            label=f"{steps} steps",
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=4,
            linewidth=1.4,
        )
    axes.axhline(start, color=INK, linestyle=":", linewidth=1, label="before training")
    axes.axvline(search["chosen"], color=INK, linestyle="--", linewidth=1, label=f"chosen: {search['chosen']:g}")
    losses = [start, *(loss for course in rounds.values() for loss in course.values() if loss is not None)]
    span = start - min(losses) or max(losses) - start or 1.0
    axes.set_ylim(min(losses) - 0.1 * span, min(max(losses), start + span) + 0.1 * span)  # others may be far above
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss on held-out documents")
    rates = sorted({rate for course in rounds.values() for rate in course})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.set_xticks([], minor=True)
