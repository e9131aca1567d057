"""Metrics of tasks that choose among answers, and of questions with several right answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from foretoken.errors import DataError
from foretoken.metrics.checks import checked_predictions, top_class
from foretoken.metrics.classification import probability_metrics

_OF_PROBABILITIES = ("ece", "smece", "brier", "nll", "aurc")


def choice_metrics(probabilities: ArrayLike, labels: ArrayLike, *, n_bins: int = 15) -> dict[str, float]:
    """Return accuracy, ece, smece, brier, nll and aurc of probabilities (n, K) of up to K choices against labels (n,).

    A row with fewer than K choices is padded with zeros at its end, which change none of the metrics. A label is
    the index of the right choice. K is 2 or more.

    Raises :class:`~foretoken.errors.DataError` for unusable predictions, and
    :class:`~foretoken.errors.ConfigError` for ``n_bins`` below 1.

    >>> scores = choice_metrics([[0.5, 0.25, 0.25], [0.25, 0.75, 0]], [2, 1])
    >>> scores["accuracy"], scores["brier"], scores["aurc"]
    (0.5, 0.5, 0.25)
    """
    scores, truth = checked_predictions(probabilities, labels)
    metrics = probability_metrics(scores, truth, n_bins)
    return {"accuracy": float(top_class(scores, truth)[1].mean())} | {name: metrics[name] for name in _OF_PROBABILITIES}


def grouped_exact_match(correct: ArrayLike, groups: ArrayLike) -> float:
    """Return the share of groups of which every row is correct: ``correct`` (n,) of booleans, ``groups`` (n,) of names.

    The exact match of MultiRC (Khashabi et al. 2018), with a question's answers as its group. The rows of a
    group need not follow one another.

    Raises :class:`~foretoken.errors.DataError` for shapes that differ and for no rows.

    >>> grouped_exact_match([True, True, False, True], ["q1", "q2", "q1", "q2"])
    0.5
    """
    right, names = np.asarray(correct), np.asarray(groups)
    if right.ndim != 1 or right.shape != names.shape:
        raise DataError(
            f"correct has shape {right.shape} and groups {names.shape}; expected (rows,), one group for each"
        )
    if not len(right):
        raise DataError("there are no answers to score; expected at least one row")
    if right.dtype != np.bool_:
        raise DataError(f"correct is of type {right.dtype}; expected booleans, whether each row is right")
    _, index = np.unique(names, return_inverse=True)
    return float((np.bincount(index, ~right) == 0).mean())
