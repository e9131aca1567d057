"""Do the probabilities mean what they say? Guo et al. (2017), section 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretoken.metrics.checks import check_n_bins, checked_predictions


@dataclass(frozen=True)
class ReliabilityBin:
    """The predictions whose confidence lies in [lower, upper); the means are None where there are none."""

    lower: float
    upper: float
    count: int
    confidence: float | None
    accuracy: float | None


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> float:
    """Return the expected calibration error of probabilities (n, C) against labels (n,).

    ECE = sum over bins b of (n_b / n) |accuracy(b) - confidence(b)|, equation (3) of Guo et al., where a
    prediction's confidence is its largest probability, and confidence(b) is the mean of those in b (not the
    bin's middle). As torchmetrics has it, the ``n_bins`` bins are equally wide and closed on the left (Guo et
    al. close them on the right), a confidence of exactly 1 is in a bin of its own, and confidences are
    compared with the edges in float32.

    Raises :class:`~foretoken.errors.DataError` for unusable predictions, and
    :class:`~foretoken.errors.ConfigError` for ``n_bins`` below 1.

    >>> expected_calibration_error([[0.75, 0.25], [0.25, 0.75]], [0, 0])
    0.25
    """
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    check_n_bins(n_bins)
    scores, truth = checked_predictions(probabilities, labels)
    error = multiclass_calibration_error(
        torch.from_numpy(scores),
        torch.from_numpy(truth),
        num_classes=scores.shape[1],
        n_bins=n_bins,
        norm="l1",
    )
    return float(error)


def reliability_bins(probabilities: ArrayLike, labels: ArrayLike, n_bins: int = 15) -> list[ReliabilityBin]:
    """Return the bins behind :func:`expected_calibration_error`, from low to high, empty ones included.

    There are ``n_bins`` of them and a last one, from 1 to 1, for confidences of exactly 1.

    Raises as :func:`expected_calibration_error` does.

    >>> for row in reliability_bins([[0.75, 0.25], [0.25, 0.75], [0, 1]], [0, 0, 1], n_bins=2):
    ...     print(row.lower, row.upper, row.count, row.confidence, row.accuracy)
    0.0 0.5 0 None None
    0.5 1.0 2 0.75 0.5
    1.0 1.0 1 1.0 1.0
    """
    check_n_bins(n_bins)
    scores, truth = checked_predictions(probabilities, labels)
    confidence, correct = scores.max(axis=1), scores.argmax(axis=1) == truth
    edges = np.linspace(0, 1, n_bins + 1)
    index = _bin_index(confidence, n_bins)
    return [
        _bin(lower, upper, confidence[index == i], correct[index == i])
        for i, (lower, upper) in enumerate(zip(edges, [*edges[1:], 1.0], strict=True))
    ]


def _bin_index(confidence: NDArray[np.float64], n_bins: int) -> NDArray[np.int64]:
    """Place each confidence as torchmetrics does: in float32, where an edge may round to either side."""
    import torch

    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float32)
    return (torch.bucketize(torch.from_numpy(confidence).float(), edges, right=True) - 1).numpy()


def _bin(lower: float, upper: float, confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> ReliabilityBin:
    if not len(confidence):
        return ReliabilityBin(float(lower), float(upper), 0, None, None)
    means = float(confidence.mean()), float(correct.mean())
    return ReliabilityBin(float(lower), float(upper), len(confidence), *means)
