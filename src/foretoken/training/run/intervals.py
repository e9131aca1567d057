"""How sure a metric on some rows is: its interval over other rows of the same kind, by the bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretoken.metrics.statistics import CONFIDENCE

Counts = NDArray[np.int64]
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
    right, answered = (np.zeros((len(labels), len(places)), dtype=np.int64) for _ in range(2))
    for held, rows in ((right, labels), (answered, predictions)):
        for number, row in enumerate(rows):
            held[number, [places[name] for name in row]] = 1
    counts = generator.multinomial(len(labels), [1 / len(labels)] * len(labels), size=samples)  # of each document
    hits, there = counts @ (right * answered), counts @ (right + answered)
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
