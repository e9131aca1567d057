"""What metrics of class probabilities, and of generated texts, expect of their input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretoken.errors import ConfigError, DataError

# Wide enough for a softmax computed in half precision, far too narrow for logits.
_SUM_TOLERANCE = 1e-2


def checked_predictions(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities (n, C) as float64 within [0, 1] and labels (n,) as int64, or raise DataError.

    >>> probabilities, labels = checked_predictions([[0.25, 0.75]], [1])
    >>> probabilities.dtype, labels.dtype
    (dtype('float64'), dtype('int64'))
    >>> checked_predictions([[0.25, 0.75]], [2])
    Traceback (most recent call last):
    foretoken.errors.DataError: label 2 (row 0) is not one of the 2 classes 0 to 1
    """
    scores = checked_probabilities(probabilities)
    return scores, _checked_labels(labels, *scores.shape)


def top_class(scores: NDArray[np.float64], truth: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return each row's largest probability (n,), and whether its class, the first among equals, is right (n,).

    >>> confidence, correct = top_class(*checked_predictions([[0.25, 0.75], [0.5, 0.5]], [0, 0]))
    >>> confidence.tolist(), correct.tolist()
    ([0.75, 0.5], [False, True])
    """
    return scores.max(axis=1), scores.argmax(axis=1) == truth


def check_n_bins(n_bins: int) -> None:
    """Raise :class:`~foretoken.errors.ConfigError` unless ``n_bins`` is a whole number from 1 up."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, int) or n_bins < 1:
        raise ConfigError(f"n_bins is {n_bins!r}; expected a whole number from 1 up")


def checked_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return probabilities (n, C) as float64 within [0, 1], or raise DataError."""
    try:
        scores = np.asarray(probabilities, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor that tracks gradients
        raise DataError(f"probabilities are not a table of numbers: {error}") from error
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise DataError(f"probabilities have shape {scores.shape}; expected (rows, classes), 2 classes or more")
    if len(scores) == 0:
        raise DataError("there are no predictions to score; expected at least one row")
    _refuse((~np.isfinite(scores)).any(axis=1), "has a NaN or infinite probability")
    # Rounding may step over the borders by the same margin as over the sum.
    outside = (scores < -_SUM_TOLERANCE) | (scores > 1 + _SUM_TOLERANCE)
    _refuse(outside.any(axis=1), "has values outside 0 to 1; are these logits? Apply a softmax first")
    sums = scores.sum(axis=1)
    _refuse(np.abs(sums - 1) > _SUM_TOLERANCE, "does not sum to 1; give one probability per class")
    return np.ascontiguousarray(scores.clip(0, 1))  # torch warns about other layouts


def checked_numbers(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Return finite numbers (n,) as float64, or raise DataError; ``what`` names them."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor that tracks gradients
        raise DataError(f"{what} are not a list of numbers: {error}") from error
    if numbers.ndim != 1 or not len(numbers):
        raise DataError(f"{what} have shape {numbers.shape}; expected a list of one number or more")
    bad = ~np.isfinite(numbers)
    if bad.any():
        raise DataError(f"{what} have a NaN or infinite one at place {int(bad.argmax())} ({int(bad.sum())} of them)")
    return numbers


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise DataError unless there are rows, and each has a text, which may be empty, and a list of references.

    >>> check_texts(["", "b"], [["a"], ["b", "c"]])
    >>> check_texts(["a"], ["a"])
    Traceback (most recent call last):
    foretoken.errors.DataError: row 0 has the references 'a'; expected a list of texts, at least one
    """
    if len(predictions) != len(references):
        raise DataError(f"there are {len(predictions)} predictions for {len(references)} rows of references")
    if len(predictions) == 0:
        raise DataError("there are no predictions to score; expected at least one row")
    for row, (text, known) in enumerate(zip(predictions, references, strict=True)):
        if not isinstance(text, str):
            raise DataError(f"row {row} has the prediction {text!r}; expected a text")
        if isinstance(known, str) or len(known) == 0 or not all(isinstance(reference, str) for reference in known):
            raise DataError(f"row {row} has the references {known!r}; expected a list of texts, at least one")


def _checked_labels(labels: ArrayLike, rows: int, classes: int) -> NDArray[np.int64]:
    truth = np.asarray(labels)
    if truth.shape != (rows,):
        raise DataError(f"labels have shape {truth.shape}; expected ({rows},), one for each row of probabilities")
    if truth.dtype.kind not in "iub":
        raise DataError(f"labels are of type {truth.dtype}; expected whole numbers, the classes' indices")
    outside = (truth < 0) | (truth >= classes)
    if outside.any():
        row = int(outside.argmax())
        message = f"label {truth[row]} (row {row}) is not one of the {classes} classes 0 to {classes - 1}"
        raise DataError(message)
    return truth.astype(np.int64, order="C")


def _refuse(rows: ArrayLike, what: str) -> None:
    bad = np.asarray(rows, dtype=bool)
    if bad.any():
        raise DataError(f"row {int(bad.argmax())} of the probabilities {what} ({int(bad.sum())} such rows)")
