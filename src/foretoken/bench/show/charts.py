"""Charts as a PNG, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from foretoken.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_HEIGHT, _LEAST_HEIGHT, _WIDTH = 0.28, 3.6, 8.0


@dataclass(frozen=True)
class Chart:
    """Lines over a logarithmic x axis, or one bar per name."""

    title: str
    kind: Literal["lines", "bars"]
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    bars: Mapping[str, float] = field(default_factory=dict)


def draw(charts: Sequence[Chart], file: Path) -> bool:
    """Draw charts under each other; return False where there is nothing to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = [chart for chart in charts if chart.series or chart.bars]
    if not charts:
        return False
    heights = [max(_LEAST_HEIGHT, _BAR_HEIGHT * len(chart.bars) + 1) for chart in charts]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for chart, axis in zip(charts, axes, strict=True):
        _bars(chart, axis) if chart.kind == "bars" else _lines(chart, axis)
    with atomic_file(file) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return True


def _lines(chart: Chart, axis: Axes) -> None:
    for name, points in chart.series.items():
        axis.plot(*zip(*points, strict=True), marker="o", label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    ticks = sorted({x for points in chart.series.values() for x, _ in points})
    axis.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axis.grid(which="both", alpha=0.3)
    axis.legend()
    axis.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)


def _bars(chart: Chart, axis: Axes) -> None:
    names = list(chart.bars)
    drawn = axis.barh(names, [chart.bars[name] for name in names])
    axis.bar_label(drawn, fmt="%.1f", padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set(title=chart.title, xlabel=chart.x)
