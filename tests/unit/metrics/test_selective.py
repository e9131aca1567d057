"""Coverage, risk and their area against loops over the definitions and over all orders of ties."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.errors import DataError
from foretoken.metrics import aurc, coverage_risk

ROWS = st.lists(st.tuples(st.integers(5, 10), st.integers(0, 1)), min_size=1, max_size=6)


def two_classes(tenths):
    return [[tenth / 10, 1 - tenth / 10] for tenth in tenths]


def naive_risks(pairs):
    """Return the risk at every coverage, as the mean over all orders that sort pairs (confidence, wrong)."""
    curves = []
    for order in permutations(pairs):
        confidences = [confidence for confidence, _ in order]
        if confidences == sorted(confidences, reverse=True):
            curves.append([sum(wrong for _, wrong in order[:k]) / k for k in range(1, len(order) + 1)])
    return np.mean(curves, axis=0)


@given(ROWS)
@settings(max_examples=40, deadline=None)
def test_equals_the_mean_over_all_orders(rows):
    scores, labels = two_classes([tenth for tenth, _ in rows]), [label for _, label in rows]
    coverage, risk = coverage_risk(scores, labels)
    expected = naive_risks(rows)  # class 0 is predicted, even at one half
    np.testing.assert_allclose(risk, expected, atol=1e-12)
    np.testing.assert_allclose(coverage, [k / len(rows) for k in range(1, len(rows) + 1)])
    assert aurc(scores, labels) == pytest.approx(expected.mean(), abs=1e-12)


def test_without_ties_on_many_rows():
    generator = np.random.default_rng(0)
    scores, labels = generator.dirichlet(np.ones(3), size=500), generator.integers(3, size=500)
    order = sorted(range(500), key=lambda row: -scores[row].max())
    wrong = [scores[row].argmax() != labels[row] for row in order]
    naive = [sum(wrong[:k]) / k for k in range(1, 501)]
    np.testing.assert_allclose(coverage_risk(scores, labels)[1], naive, atol=1e-12)
    assert coverage_risk(scores, labels)[1][-1] == pytest.approx(np.mean(scores.argmax(1) != labels))


@pytest.mark.parametrize("function", [coverage_risk, aurc])
def test_unusable_predictions(function):
    with pytest.raises(DataError, match="no predictions"):
        function(np.zeros((0, 2)), [])
