"""Choices among a varying number of answers, and questions with several right ones, against plain loops."""

import math

import numpy as np
import pytest

from foretoken.errors import DataError
from foretoken.metrics import metric_names
from foretoken.metrics.choice import choice_metrics, grouped_exact_match


def ragged(rows, seed):
    """Return lists of 2 to 6 probabilities, and the right one's index for each."""
    generator = np.random.default_rng(seed)
    choices = [generator.dirichlet(np.ones(generator.integers(2, 7))).tolist() for _ in range(rows)]
    return choices, [int(generator.integers(len(row))) for row in choices]


def padded(choices, width):
    return [row + [0.0] * (width - len(row)) for row in choices]


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_naive_computation_on_rows_without_padding(seed):
    choices, labels = ragged(80, seed)
    got = choice_metrics(padded(choices, 6), labels, n_bins=1)
    pairs = list(zip(choices, labels, strict=True))
    right = [row.index(max(row)) == label for row, label in pairs]
    assert got["accuracy"] == pytest.approx(sum(right) / 80)
    assert got["ece"] == pytest.approx(abs(sum(right) - sum(map(max, choices))) / 80, abs=1e-6)
    squares = [sum((p - (number == label)) ** 2 for number, p in enumerate(row)) for row, label in pairs]
    assert got["brier"] == pytest.approx(sum(squares) / 80)
    assert got["nll"] == pytest.approx(sum(-math.log(row[label]) for row, label in pairs) / 80)
    wrong = [not hit for _, hit in sorted(zip(map(max, choices), right, strict=True), reverse=True)]
    assert got["aurc"] == pytest.approx(sum(sum(wrong[:k]) / k for k in range(1, 81)) / 80)
    assert (*got, "loss") == metric_names(None, "multiple-choice") == metric_names(None, "candidates")
    assert all(type(value) is float for value in got.values())


@pytest.mark.parametrize("seed", range(3))
def test_exact_match_equals_the_naive_computation(seed):
    generator = np.random.default_rng(seed)
    correct, groups = generator.random(60) < 0.8, generator.integers(20, size=60)
    questions = {}
    for right, name in zip(correct, groups, strict=True):
        questions.setdefault(name, []).append(right)
    expected = sum(all(rights) for rights in questions.values()) / len(questions)
    assert 0 < expected < 1
    assert grouped_exact_match(correct, groups) == pytest.approx(expected)
    assert grouped_exact_match(correct.tolist(), [f"q{name}" for name in groups]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("correct", "groups", "message"),
    [
        ([True], ["a", "b"], r"correct has shape \(1,\) and groups \(2,\)"),
        ([[True]], [["a"]], r"correct has shape \(1, 1\)"),
        ([], [], "no answers"),
        ([0.5], ["a"], "correct is of type float64; expected booleans"),
    ],
)
def test_unusable_groups(correct, groups, message):
    with pytest.raises(DataError, match=message):
        grouped_exact_match(correct, groups)
