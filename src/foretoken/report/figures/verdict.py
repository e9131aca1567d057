"""The best method of each task beside its baselines, on the full scale of the metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretoken.data.problems import Answer
from foretoken.metrics.worth.verdict import MAJORITY
from foretoken.report.figures.style import COLOURS, grid, percent, styled, wrapped
from foretoken.report.runs.groups import TEST, Results
from foretoken.report.runs.verdicts import Verdict, verdicts
from foretoken.report.scores import is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = COLOURS[7]


@styled
def beside_baselines(results: Results) -> Figure | None:
    """Draw scores with 95 % intervals, a panel per task and model."""
    judged = verdicts(results)
    if not judged:
        return None
    rows = max(len(item.baselines) for item in judged) + 1
    figure, axes = grid(len(judged), columns=1, height=0.75 + 0.3 * rows)
    figure.set_figwidth(5.0)  # a phone shows the whole scale
    for item, ax in zip(judged, axes, strict=True):
        _draw(ax, item)
    return figure


def _draw(axes: Axes, judged: Verdict) -> None:
    compared, metric = judged.versus, judged.versus.metric
    rows = [(judged.group.label, compared.score, compared.lower, compared.upper, COLOURS[0])]
    rows += [
        (_name(name, judged), item.other, item.other_lower, item.other_upper, _GREY)
        for name, item in judged.baselines.items()
    ]
    for row, (_, score, lower, upper, colour) in enumerate(rows):
        around = [[max(0.0, score - lower)], [max(0.0, upper - score)]]
        axes.errorbar([score], [row], xerr=around, color=colour, marker="o", capsize=3, linestyle="none", clip_on=False)
    axes.set_yticks(range(len(rows)), [wrapped(name) for name, *_ in rows])
    axes.set(title=judged.title, ylim=(len(rows) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)
    lowest, highest = min(0.0, *(row[2] for row in rows)), max(row[3] for row in rows)
    axes.set_xlim(lowest, max(1.0, highest) if is_share(metric) else 1.05 * highest)
    axes.set_xlabel(f"{judged.group.heading(metric)}{' in %' if is_share(metric) else ''}, {TEST}")
    if is_share(metric):
        axes.xaxis.set_major_formatter(percent)


def _name(baseline: str, judged: Verdict) -> str:
    if baseline == MAJORITY and judged.group.first.answer is Answer.LABELS:
        return "commonest labels"
    return baseline
