"""How close predicted numbers are to the true ones, and whether they rank alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretoken.errors import DataError
from foretoken.metrics.checks import checked_numbers


def regression_metrics(predictions: ArrayLike, values: ArrayLike) -> dict[str, float]:
    """Return ``pearson``, ``spearman``, ``pearson_spearman`` and ``mse`` of predictions (n,) against values (n,).

    The correlations are scipy's; ``pearson_spearman`` is their mean, which GLUE reports for STS-B. ``mse`` is
    the mean of the squared differences. Where the predictions or the values are all equal, a single row
    included, no correlation is defined, and the three are NaN.

    Raises :class:`~foretoken.errors.DataError` for unequal lengths, no rows, and numbers that are not finite.

    >>> scores = regression_metrics([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    >>> {name: round(value, 3) for name, value in scores.items()}
    {'pearson': 0.982, 'spearman': 1.0, 'pearson_spearman': 0.991, 'mse': 0.333}
    """
    from scipy.stats import pearsonr, spearmanr

    guesses, truth = checked_numbers(predictions, "the predictions"), checked_numbers(values, "the values")
    if len(guesses) != len(truth):
        raise DataError(f"there are {len(guesses)} predictions for {len(truth)} values; expected one for each")
    pearson, spearman = _correlation(pearsonr, guesses, truth), _correlation(spearmanr, guesses, truth)
    return {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": (pearson + spearman) / 2,
        "mse": float(np.mean((guesses - truth) ** 2)),
    }


def _correlation(function: Callable[..., Any], guesses: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    if np.ptp(guesses) == 0 or np.ptp(truth) == 0:
        return float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's word on values that are equal but for rounding
        return float(function(guesses, truth).statistic)
