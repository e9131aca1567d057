"""How often the predicted class is the right one, and how well its probability says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretoken.metrics.calibration import expected_calibration_error
from foretoken.metrics.checks import check_n_bins, checked_predictions
from foretoken.metrics.table import metric_names


def classification_metrics(probabilities: ArrayLike, labels: ArrayLike, *, n_bins: int = 15) -> dict[str, float]:
    """Return the metrics of :func:`~foretoken.metrics.metric_names` for probabilities (n, C) and labels (n,).

    The predicted class is that of the largest probability, the first one of equals. Precision, recall and F1
    are scikit-learn's: a ratio without cases is 0, and the macro mean is over the classes that are
    predicted or labelled at all. With two classes ``f1`` is that of class 1. ``ece`` is
    :func:`~foretoken.metrics.expected_calibration_error` with ``n_bins`` bins.

    Raises :class:`~foretoken.errors.DataError` for unusable predictions, and
    :class:`~foretoken.errors.ConfigError` for ``n_bins`` below 1.

    >>> scores = classification_metrics([[0.75, 0.25], [0.25, 0.75], [0.25, 0.75]], [0, 0, 1])
    >>> {name: round(value, 3) for name, value in scores.items() if name in ("accuracy", "f1", "ece")}
    {'accuracy': 0.667, 'f1': 0.667, 'ece': 0.083}
    """
    check_n_bins(n_bins)
    scores, truth = checked_predictions(probabilities, labels)
    predicted = scores.argmax(axis=1)
    values = {
        "accuracy": _accuracy(truth, predicted),
        **_precision_recall_f1(truth, predicted, "micro"),
        **_precision_recall_f1(truth, predicted, "macro"),
        "ece": expected_calibration_error(scores, truth, n_bins),
    }
    if scores.shape[1] == 2:
        values["f1"] = _f1_of_class_1(truth, predicted)
    return {name: values[name] for name in metric_names(scores.shape[1])}


def _accuracy(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, predicted))


def _precision_recall_f1(truth: NDArray[np.int64], predicted: NDArray[np.int64], average: str) -> dict[str, float]:
    from sklearn.metrics import precision_recall_fscore_support

    values = precision_recall_fscore_support(truth, predicted, average=average, zero_division=0)[:3]
    names = (f"{name}_{average}" for name in ("precision", "recall", "f1"))
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def _f1_of_class_1(truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, pos_label=1, average="binary", zero_division=0))
