"""How sure a metric on some rows is: its interval over other rows of the same kind, by the bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretoken.metrics.calibration import CELLS, smooth_cells, smooth_errors, width_index
from foretoken.metrics.checks import checked_predictions, top_class
from foretoken.metrics.multi_label import label_bins
from foretoken.metrics.statistics import CONFIDENCE, row_counts
from foretoken.training.problems.multi_label import zeros_and_ones

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]
_AT_ONCE = 2_000_000  # counts in memory
_CHOICES = ("multiple-choice", "candidates")


def bootstrap_intervals(
    problem: str,
    labels: Sequence[Any],
    predictions: Sequence[Any],
    *,
    classes: Sequence[str] = (),
    samples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of metrics over n rows, each by its name.

    It is of the 2.5 % and 97.5 % quantiles of ``samples`` draws of n rows with replacement. Classification has accuracy
    and macro F1, with two ``classes`` F1 of the second; several labels have micro and macro F1; questions with choices
    have accuracy; regression has the squared error and Pearson's correlation. Other problems, and fewer than two rows,
    have none.

    >>> found = bootstrap_intervals("classification", ["a", "a", "b", "b"] * 25, ["a", "a", "b", "a"] * 25)
    >>> low, high = found["accuracy"]
    >>> 0.6 < low < 0.75 < high < 0.9
    True
    """
    generator = np.random.default_rng(seed)
    if len(labels) < 2:
        return {}
    if problem == "classification":
        drawn = _of_classes(labels, predictions, classes, samples, generator)
    elif problem == "multi-label-classification":
        drawn = _of_label_sets(labels, predictions, classes, samples, generator)
    elif problem in _CHOICES:
        right = np.array([label == prediction for label, prediction in zip(labels, predictions, strict=True)])
        drawn = {"accuracy": generator.binomial(len(right), right.mean(), size=samples) / len(right)}
    elif problem == "regression":
        drawn = _of_numbers(np.asarray(labels, float), np.asarray(predictions, float), samples, generator)
    else:
        return {}
    return {name: _interval(values) for name, values in drawn.items()}


def calibration_draws(
    outputs: ArrayLike, truth: ArrayLike, *, n_bins: int = 15, samples: int = 1000, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Return ``ece`` and ``smece`` (S,) of ``samples`` draws of n documents with replacement.

    The same seed draws the same documents, so that the draws of several models may be averaged.

    Args:
        outputs: probabilities (n, C) of one class per document, or (n, L) of several labels.
        truth: class numbers (n,), or 0 and 1 (n, L).
        n_bins: of the ECE.
        samples: how often documents are drawn.
        seed: of the draws.
    """
    from scipy.sparse import csr_array

    confidence, gap, bins = _doubts(np.asarray(outputs, dtype=float), np.asarray(truth), n_bins)
    rows = np.repeat(np.arange(len(gap)), gap.shape[1])
    places = [(bins.ravel(), n_bins + 1), (smooth_cells(confidence.ravel()), CELLS)]
    sums = [csr_array((gap.ravel(), (rows, cells)), shape=(len(gap), size)) for cells, size in places]
    drawn = [
        [(counts @ matrix) / gap.size for matrix in sums]
        for counts in row_counts(len(gap), samples, np.random.default_rng(seed))
    ]
    binned, smooth = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return {"ece": np.abs(binned).sum(axis=1), "smece": smooth_errors(smooth)}


def calibration_intervals(
    values: Mapping[str, float], outputs: ArrayLike, truth: ArrayLike, *, n_bins: int = 15
) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of the calibration errors among ``values``; none of fewer than two rows.

    >>> calibration_intervals({"ece": 0.25}, [[0.75, 0.25], [0.25, 0.75], [0.6, 0.4], [0.6, 0.4]], [0, 0, 1, 0]).keys()
    dict_keys(['ece'])
    """
    if len(np.asarray(truth)) < 2:
        return {}
    drawn = calibration_draws(outputs, truth, n_bins=n_bins)
    return {name: error_interval(values[name], draws) for name, draws in drawn.items() if name in values}


def error_interval(value: float, draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of a calibration error from its draws (S,).

    A calibration error is a sum of distances, which chance alone makes larger, and drawing documents anew makes it so
    a second time: the quantiles of the draws lie too high. So they are reflected about the value (the basic
    bootstrap), as far as 0, and the interval holds the value itself.
    """
    low, high = _interval(draws)
    return max(0.0, min(value, 2 * value - high)), max(value, 2 * value - low)


def _doubts(outputs: Numbers, truth: NDArray[Any], n_bins: int) -> tuple[Numbers, Numbers, Counts]:
    """Return confidences, how far they are from what is right, and their bins (n, K), as the metrics have them."""
    if truth.ndim == 2:
        return outputs, truth - outputs, label_bins(outputs, n_bins)
    confidence, correct = top_class(*checked_predictions(outputs, truth))
    return confidence[:, None], (correct - confidence)[:, None], width_index(confidence, n_bins)


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    tails = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tails, 1 - tails])
    return float(low), float(high)


def _of_classes(
    labels: Sequence[Any],
    predictions: Sequence[Any],
    classes: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, NDArray[np.float64]]:
    """Return the metrics of every sample: drawing rows is drawing how many have which label and prediction."""
    places = {name: place for place, name in enumerate(classes or sorted({*labels, *predictions}))}
    numbers = np.array([places[name] for name in (*labels, *predictions)])
    size, rows = len(places), len(labels)
    cells = np.bincount(numbers[:rows] * size + numbers[rows:], minlength=size * size)
    step = max(1, _AT_ONCE // len(cells))
    parts = []
    for start in range(0, samples, step):
        drawn = generator.multinomial(rows, cells / rows, size=min(step, samples - start))
        parts.append(_class_metrics(drawn.reshape(-1, size, size)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _class_metrics(confusion: Counts) -> dict[str, NDArray[np.float64]]:
    """(S, C, C) counts of label and prediction -> metrics (S,), as scikit-learn defines them."""
    right = np.diagonal(confusion, axis1=1, axis2=2)
    there = confusion.sum(axis=1) + confusion.sum(axis=2)  # labelled plus predicted, each class
    f1 = 2 * right / np.maximum(there, 1)
    macro = f1.sum(axis=1) / (there > 0).sum(axis=1)
    found = {"accuracy": right.sum(axis=1) / confusion.sum(axis=(1, 2)), "f1_macro": macro}
    return found | ({"f1": f1[:, 1]} if confusion.shape[1] == 2 else {})


def _of_label_sets(
    labels: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    classes: Sequence[str],
    samples: int,
    generator: np.random.Generator,
) -> dict[str, NDArray[np.float64]]:
    names = classes or sorted({name for row in (*labels, *predictions) for name in row})
    places = {name: place for place, name in enumerate(names)}
    right, answered = (
        zeros_and_ones([[places[name] for name in row] for row in rows], len(places)).astype(np.int64)
        for rows in (labels, predictions)
    )
    drawn = [
        (counts @ (right * answered), counts @ (right + answered))
        for counts in row_counts(len(labels), samples, generator)
    ]
    hits, there = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    macro = (2 * hits / np.maximum(there, 1)).mean(axis=1)
    return {"f1_micro": 2 * hits.sum(axis=1) / np.maximum(there.sum(axis=1), 1), "f1_macro": macro}


def _of_numbers(
    labels: NDArray[np.float64], predictions: NDArray[np.float64], samples: int, generator: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    squared, correlated = np.empty(samples), np.empty(samples)
    with np.errstate(invalid="ignore", divide="ignore"):  # values that are all alike
        for sample in range(samples):
            rows = generator.integers(len(labels), size=len(labels))
            squared[sample] = ((labels[rows] - predictions[rows]) ** 2).mean()
            pairs = zip(np.atleast_2d(labels[rows].T), np.atleast_2d(predictions[rows].T), strict=True)
            correlated[sample] = np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])  # over several targets
    return {"mse": squared} | ({"pearson": correlated} if np.isfinite(correlated).all() else {})
