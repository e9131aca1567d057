"""Calibration errors and proper scores against plain loops over their definitions, torchmetrics and scikit-learn."""

import math
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import binary_calibration_error

from foretoken.errors import ConfigError, DataError
from foretoken.metrics.calibration import (
    ReliabilityBin,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
    smooth_calibration_error,
    smooth_error,
    upper_edge_calibration_error,
)
from foretoken.metrics.scores import brier_score, negative_log_likelihood

equal_mass_error = partial(expected_calibration_error, strategy="mass")


def two_classes(confidences):
    return [[c, 1 - c] for c in confidences]


def random_predictions(classes, seed, *, rows=100):
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.ones(classes), size=rows), generator.integers(classes, size=rows)


def top(scores, labels):
    """Return pairs (confidence, right)."""
    return [(max(row), list(row).index(max(row)) == label) for row, label in zip(scores, labels, strict=True)]


def gap(members):
    """Return |accuracy - mean confidence| of pairs (confidence, right)."""
    return abs(sum(right - confidence for confidence, right in members)) / len(members)


def in_equal_widths(pairs, n_bins):
    """Put pairs where the last edge at or below their confidence says; 1 itself is the last edge of all."""
    bins = {}
    for confidence, right in pairs:
        number = max(i for i in range(n_bins + 1) if np.float32(confidence) >= np.float32(i / n_bins))
        bins.setdefault(number, []).append((confidence, right))
    return bins.values()


def in_equal_mass(pairs, n_bins):
    """Deal the sorted predictions out to the bins; whoever equals the one before goes where that went."""
    bins, number, before = {}, 0, None
    for rank, (confidence, right) in enumerate(sorted(pairs)):
        number = number if confidence == before else rank * n_bins // len(pairs)
        bins.setdefault(number, []).append((confidence, right))
        before = confidence
    return bins.values()


def mean_gap(bins):
    return sum(len(members) * gap(members) for members in bins) / sum(map(len, bins))


def from_bins(rows):
    total = sum(row.count for row in rows)
    return sum(row.count / total * abs(row.accuracy - row.confidence) for row in rows)


def check_all(scores, labels, n_bins):
    """Compare every error of predictions with its definition."""
    pairs = top(scores, labels)
    wide, full = in_equal_widths(pairs, n_bins), in_equal_mass(pairs, n_bins)
    assert expected_calibration_error(scores, labels, n_bins) == pytest.approx(mean_gap(wide), abs=1e-6)
    assert from_bins(reliability_bins(scores, labels, n_bins)) == pytest.approx(mean_gap(wide), abs=1e-6)
    assert maximum_calibration_error(scores, labels, n_bins) == pytest.approx(max(map(gap, wide)), abs=1e-6)
    assert equal_mass_error(scores, labels, n_bins) == pytest.approx(mean_gap(full), abs=1e-12)
    columns = zip(*scores, strict=True)
    each = [
        mean_gap(in_equal_widths([(p, label == of) for p, label in zip(column, labels, strict=True)], n_bins))
        for of, column in enumerate(columns)
    ]
    assert classwise_calibration_error(scores, labels, n_bins) == pytest.approx(np.mean(each), abs=1e-9)


@pytest.mark.parametrize("n_bins", [1, 4, 10, 15])
@pytest.mark.parametrize("classes", [2, 5])
def test_errors_equal_their_definitions(classes, n_bins):
    for rows in (1, 10, 300):
        scores, labels = random_predictions(classes, n_bins, rows=rows)
        check_all(scores.tolist(), labels.tolist(), n_bins)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), min_size=1, max_size=20), st.sampled_from([1, 2, 4, 8])
)
@settings(max_examples=60, deadline=None)
def test_errors_equal_their_definitions_on_and_between_edges(rows, n_bins):
    check_all(two_classes([eighths / 8 for eighths, _ in rows]), [label for _, label in rows], n_bins)


@pytest.mark.parametrize("tenth", range(5, 11))
def test_tenths_fall_into_the_same_bin_everywhere(tenth):
    check_all(two_classes([tenth / 10, 0.64]), [1, 0], 10)


def test_the_classwise_error_is_torchmetrics_of_each_class():
    scores, labels = random_predictions(5, 4)
    errors = [
        float(binary_calibration_error(torch.tensor(scores[:, of]), torch.from_numpy(labels == of).long(), n_bins=15))
        for of in range(5)
    ]
    assert classwise_calibration_error(scores, labels) == pytest.approx(np.mean(errors), abs=1e-6)


def test_an_edge_belongs_to_the_bin_above_it_and_1_has_one_of_its_own():
    rows = reliability_bins(two_classes([0.5, 0.75]), [0, 0], n_bins=4)
    assert [(row.lower, row.count) for row in rows] == [(0.5, 1), (0.75, 1)]
    rows = reliability_bins(two_classes([1.0, 0.875]), [1, 0], n_bins=2)
    assert rows == [ReliabilityBin(0.5, 1, 0.875, 1.0), ReliabilityBin(1.0, 1, 1.0, 0.0)]


def test_rounding_above_1_is_no_logit():
    # torchmetrics would take 1.000001 for a logit and apply a softmax to all rows
    assert expected_calibration_error([[1.000001, -0.000001], [0.75, 0.25]], [0, 0]) == pytest.approx(0.125)


def test_upper_edges_give_the_number_on_the_card_of_the_papers_metric():
    # the example of https://huggingface.co/spaces/jordyvl/ece
    error = upper_edge_calibration_error([[0.6, 0.2, 0.2], [0, 0.95, 0.05], [0.7, 0.1, 0.2]], [0, 1, 2])
    assert error == pytest.approx(0.1333333333333334, abs=1e-12)
    # certainty is in the last bin
    assert upper_edge_calibration_error([[1, 0], [0.95, 0.05]], [0, 0]) == pytest.approx(0)
    assert upper_edge_calibration_error([[1, 0], [0.95, 0.05]], [0, 1]) == pytest.approx(0.5)


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_upper_edges_equal_their_definition(n_bins):
    scores, labels = random_predictions(3, 1)
    total = 0.0
    for number in range(n_bins):
        lower, upper = number / n_bins, (number + 1) / n_bins
        right = [hit for confidence, hit in top(scores, labels) if lower <= confidence < upper]
        total += abs(sum(right) - upper * len(right)) / 100
    assert upper_edge_calibration_error(scores, labels, n_bins) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_proper_scores_equal_their_definitions_and_scikit_learns(classes):
    scores, labels = random_predictions(classes, 0)
    rows = list(zip(scores.tolist(), labels, strict=True))
    squares = sum((p - (number == label)) ** 2 for row, label in rows for number, p in enumerate(row))
    assert brier_score(scores, labels) == pytest.approx(squares / 100, abs=1e-12)
    if classes == 2:
        assert brier_score(scores, labels) == pytest.approx(2 * brier_score_loss(labels, scores[:, 1]), abs=1e-12)
    assert negative_log_likelihood(scores, labels) == pytest.approx(
        log_loss(labels, scores, labels=range(classes)), abs=1e-9
    )


def test_certainty():
    for right, labels in ((True, [0, 1]), (False, [1, 0])):
        assert expected_calibration_error([[1, 0], [0, 1]], labels) == (0 if right else 1)
        assert brier_score([[1, 0], [0, 1]], labels) == (0 if right else 2)
    assert str(negative_log_likelihood([[1, 0]], [0])) == "0.0"
    assert negative_log_likelihood([[1, 0]], [1]) == pytest.approx(708.396, abs=1e-3)


BINNED = [
    *(expected_calibration_error, equal_mass_error, upper_edge_calibration_error, maximum_calibration_error),
    *(classwise_calibration_error, reliability_bins),
]


@pytest.mark.parametrize("function", BINNED)
def test_unusable_numbers_of_bins(function):
    for n_bins in (0, -1, 2.5, True, None):
        with pytest.raises(ConfigError, match="n_bins is"):
            function([[0.5, 0.5]], [0], n_bins)


@pytest.mark.parametrize("function", [*BINNED, brier_score, negative_log_likelihood])
def test_unusable_predictions(function):
    with pytest.raises(DataError, match="does not sum to 1"):
        function([[0.5, 0.6]], [0])


def doubts(seed, *, rows=300, sharp=1.0):
    """Return confidences and whether they are right, which they mean where `sharp` is 1."""
    generator = np.random.default_rng(seed)
    confidence = generator.beta(5, 2, rows)
    return confidence, (generator.random(rows) < confidence**sharp).astype(float)


def smooth_at(confidence, right, bandwidth, points=4000):
    """Integrate |mean of (right - confidence) K|, the kernel folded back into [0, 1] at both ends."""
    grid = (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    for one, is_right in zip(confidence, right, strict=True):
        for image in [turn + sign * one for turn in range(-12, 13, 2) for sign in (1, -1)]:
            total += (is_right - one) * np.exp(-0.5 * ((grid - image) / bandwidth) ** 2)
    return np.abs(total).mean() / (len(confidence) * bandwidth * math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("seed", "rows", "sharp"), [(0, 20, 1.0), (1, 60, 2.5), (2, 60, 0.5)])
def test_the_smooth_error_is_the_bandwidth_that_it_has_itself(seed, rows, sharp):
    confidence, right = doubts(seed, rows=rows, sharp=sharp)
    found = smooth_error(confidence, right - confidence)
    assert smooth_at(confidence, right, found) == pytest.approx(found, abs=2e-3)


@pytest.mark.parametrize("sharp", [0.5, 1.0, 2.5])
def test_the_smooth_error_is_that_of_the_papers_package(monkeypatch, sharp):
    monkeypatch.setitem(sys.modules, "deprecation", SimpleNamespace(deprecated=lambda **_: lambda function: function))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        relplot = pytest.importorskip("relplot")
    for seed, rows in enumerate((20, 300, 2000)):
        confidence, right = doubts(seed, rows=rows, sharp=sharp)
        theirs = relplot.smECE(confidence, right)
        assert smooth_error(confidence, right - confidence) == pytest.approx(theirs, abs=2e-3)
        scores = np.stack([confidence, 1 - confidence], axis=1)
        sure = np.where(confidence < 0.5, 1 - right, right)
        ours = smooth_calibration_error(scores, 1 - right.astype(int))
        assert ours == pytest.approx(relplot.smECE(scores.max(axis=1), sure), abs=2e-3)


def test_the_smooth_error_of_certainty():
    assert smooth_calibration_error([[1, 0], [1, 0]], [0, 0]) == 0
    assert smooth_calibration_error([[1, 0], [1, 0]], [0, 1]) == pytest.approx(0.5, abs=1e-3)
