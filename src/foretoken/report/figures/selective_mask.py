"""The effect of selective prefix tuning's soft mask on a prefix token's weight: Figure 5 of Zhang et al. (2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretoken.report.figures.panels import all_panels
from foretoken.report.figures.style import COLOURS, grid, legend, styled
from foretoken.report.runs.groups import Results
from foretoken.report.runs.records import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = "selective-prefix-tuning"
ALPHAS = (1, 2, 4, 8, 16)  # of the figure
WIDEST = 3.0  # scores further from 0 are not drawn


@styled
def selective_mask(results: Results) -> Figure | None:
    """Draw ``m(s) exp(s)`` with ``m(s) = sigmoid(alpha s)`` beside ``exp(s)``, for the paper's alphas and the runs'."""
    from scipy.special import expit

    runs = [
        run for panel in all_panels(results) for group in panel.groups for run in group.runs if run.method == METHOD
    ]
    if not runs:
        return None
    trained = {alpha for run in runs if (alpha := number(run.recipe["method"].get("alpha"))) is not None}
    figure, (axes,) = grid(1, height=2.7)
    scores = np.linspace(-WIDEST, 2.0, 200)
    axes.plot(scores, np.exp(scores), color=COLOURS[0], label="exp(s), no mask")
    for alpha in sorted({*ALPHAS, *trained}):
        is_here = alpha in trained
        axes.plot(
            scores,
            expit(alpha * scores) * np.exp(scores),
            color=COLOURS[3 if is_here else 7],
            linestyle="-" if is_here else ":",
            label=f"alpha = {alpha:g}{', of these runs' if is_here else ''}",
        )
    axes.set(xlabel="score s of a prefix token", ylabel="weight in the softmax")
    legend(figure, figure.axes)
    return figure
