"""What `foretoken analyse` has measured of trained adapters: attention on the prefix, and the soft mask of SPT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import DataError
from foretoken.report.figures.panels import all_panels
from foretoken.report.figures.style import COLOURS, grid, legend, say_rest, styled, wrapped
from foretoken.report.runs.groups import Results
from foretoken.report.runs.reading import read_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretoken.report.runs.records import Run

FILE = "analysis.json"
MOST = 12  # adapters in one figure; what is left out is said below it
ALPHAS = (1, 2, 4, 8, 16)  # of figure 5 of Zhang et al. (2024)
DASHES: tuple[Any, ...] = (":", "-.", "--", (0, (6, 2, 1, 2, 1, 2)), (0, (9, 2)))  # one for each
WIDEST = 6.0  # scores further from 0 are not drawn
HIGHEST = 5.0  # nor weights above: with and without mask they are the same, and what is near 0 would be hidden


@styled
def attention_mass(results: Results) -> Figure | None:
    """Draw a layer x head heat map of the attention that the text gives to the prefix, one per adapter."""
    return _maps(results, lambda values: values.get("attention_mass"), "attention on the prefix", None)


@styled
def selective_gates(results: Results) -> Figure | None:
    """Draw a layer x head heat map of the mean of SPT's mask: 0 hides the prefix, 1 shows it as it is."""
    return _maps(results, lambda values: (values.get("selective") or {}).get("gates"), "mean mask m(s)", 1.0)


@styled
def selective_curves(results: Results) -> Figure | None:
    """Draw SPT's weight ``m(s) exp(s)`` of a score s beside ``exp(s)``, over the adapter's own scores.

    Figure 5 of Zhang et al. (2024), for the steepness that the adapter was trained with and those of the paper.
    """
    found = [(title, values) for title, values in analysed(results) if values.get("selective")]
    if not found:
        return None
    figure, axes = grid(len(found[:MOST]), height=2.7)
    for (title, values), place in zip(found[:MOST], axes, strict=True):
        _curves(place, values["selective"])
        place.set_title(wrapped(title, 44))
    say_rest(figure, found, MOST)
    legend(figure, figure.axes)
    return figure


def analysed(results: Results) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the title and the analysis of the first analysed run of every candidate that has one, chosen or not."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for panel in all_panels(results):
        for group in panel.groups:
            title = f"{panel.title}: {', '.join(filter(None, (group.label, group.setting)))}"
            found += [(title, values) for run in group.runs if (values := read_analysis(run))][:1]
    return found


def read_analysis(run: Run) -> dict[str, Any] | None:
    """Return what `analysis.json` of a run holds; None where there is none, or it cannot be read."""
    try:
        values = read_json(run.folder / FILE)
    except DataError:
        return None
    return values if isinstance(values, dict) else None


def _maps(
    results: Results, read: Callable[[Mapping[str, Any]], Any], what: str, highest: float | None
) -> Figure | None:
    found = [(title, values) for title, values in analysed(results) if read(values)]
    if not found:
        return None
    shown = [as_matrix(read(values)) for _, values in found[:MOST]]
    highest = highest or max(max(float(np.nanmax(matrix)) for matrix in shown), 1e-9)
    figure, axes = grid(len(shown), height=0.9 + 0.13 * max(len(matrix) for matrix in shown))
    for (title, values), matrix, place in zip(found, shown, axes, strict=False):
        _map(place, matrix, values.get("attentions") or [], highest)
        place.set_title(wrapped(title, 44))
    bar = figure.colorbar(axes[0].collections[0], ax=axes, label=what, location="bottom", shrink=0.5, aspect=40)
    bar.outline.set_visible(False)
    say_rest(figure, found, MOST)
    return figure


def as_matrix(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return attentions x heads; those with fewer heads than others (of a decoder, say) end in NaN.

    >>> as_matrix([[0.5, 0.25], [1.0]]).tolist()
    [[0.5, 0.25], [1.0, nan]]
    """
    matrix = np.full((len(rows), max(map(len, rows))), np.nan)
    for row, values in zip(matrix, rows, strict=True):
        row[: len(values)] = values
    return matrix


def _map(axes: Axes, matrix: NDArray[np.float64], names: Sequence[str], highest: float) -> None:
    count, heads = matrix.shape
    names = list(names) if len(names) == count else [f"layer {index}" for index in range(count)]
    # rasterized: thousands of rectangles would make a page heavy
    axes.pcolormesh(matrix, cmap="viridis", vmin=0, vmax=highest, rasterized=True)
    axes.invert_yaxis()
    every, other = -(-count // 24), -(-heads // 16)  # so that the names do not touch
    short = [name.removeprefix("layer ") for name in names]
    axes.set_yticks(np.arange(0, count, every) + 0.5, short[::every])
    axes.set_xticks(np.arange(0, heads, other) + 0.5, [str(head) for head in range(0, heads, other)])
    axes.tick_params(length=0)
    axes.set(xlabel="head", ylabel="layer" if short != names else "")
    axes.grid(visible=False)


def _curves(axes: Axes, selective: Mapping[str, Any]) -> None:
    alpha, edges = float(selective["alpha"]), np.asarray(selective["score_edges"], dtype=np.float64)
    counts = np.asarray(selective["score_counts"], dtype=np.float64)
    low, high = shown_range(edges, counts)
    x = np.linspace(low, high, 200)
    axes.plot(x, np.exp(x), color=COLOURS[0], linewidth=1.4, label="exp(s), no mask")
    for other, line in zip(ALPHAS, DASHES, strict=True):
        if other == alpha:
            continue
        axes.plot(x, masked(x, other), color=COLOURS[7], linestyle=line, linewidth=0.9, label=f"alpha = {other:g}")
    axes.plot(x, masked(x, alpha), color=COLOURS[3], linewidth=2, label=f"alpha = {alpha:g}, as trained")
    axes.set(xlabel="score s of a prefix token", ylabel="weight in the softmax", xlim=(low, high))
    axes.set_ylim(0, min(np.exp(high), HIGHEST))


def masked(x: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return ``m(x) exp(x)`` with ``m(x) = sigmoid(alpha x)`` (eq. 5 and 6 of Zhang et al. 2024).

    >>> masked(np.array([0.0]), 4.0).tolist()
    [0.5]
    """
    from scipy.special import expit

    return expit(alpha * x) * np.exp(x)


def shown_range(edges: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range that holds all scores but one in a thousand on either side, -2 to 2 at least.

    >>> shown_range(np.array([-5.0, -4.0, 0.0, 3.0]), np.array([10, 10, 10]))
    (-5.0, 3.0)
    """
    share = np.cumsum(counts) / max(1, counts.sum())
    first, last = int(np.searchsorted(share, 0.001)), int(np.searchsorted(share, 0.999))
    low, high = edges[min(first, len(counts) - 1)], edges[min(last, len(counts) - 1) + 1]
    return float(max(-WIDEST, min(-2.0, low))), float(min(WIDEST, max(2.0, high)))
