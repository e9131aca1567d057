"""Summaries, tests and expectations against enumeration, scipy and numbers worked by hand."""

import itertools
import math
import statistics
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.errors import DataError
from foretoken.metrics.statistics import (
    expected_validation_performance,
    holm,
    mean_interval,
    paired_bootstrap,
    smallest_seen,
    summary,
    t_test,
)


def test_a_summary_is_the_standard_librarys():
    values = [0.61, 0.55, 0.72, 0.48]
    got = summary(values)
    assert (got.n, got.minimum, got.maximum) == (4, 0.48, 0.72)
    assert got.mean == pytest.approx(statistics.mean(values))
    assert got.std == pytest.approx(statistics.stdev(values))
    assert got.median == pytest.approx(statistics.median(values))
    assert math.isnan(summary([0.5]).std)


def test_the_interval_of_a_mean_is_scipys():
    values = [0.61, 0.55, 0.72, 0.48]
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((expected.low, expected.high))
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5)
    assert mean_interval([0.5]) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [([], "expected a list of one"), ([1, float("nan")], "NaN or infinite one at place 1"), (["x"], "not a list")],
)
def test_unusable_values_are_refused(values, message):
    for function in (summary, mean_interval, expected_validation_performance, lambda some: t_test(some, [1, 2])):
        with pytest.raises(DataError, match=message):
            function(values)


def naive_welch(one, other):
    first, second = statistics.variance(one) / len(one), statistics.variance(other) / len(other)
    statistic = (statistics.mean(one) - statistics.mean(other)) / math.sqrt(first + second)
    freedom = (first + second) ** 2 / (first**2 / (len(one) - 1) + second**2 / (len(other) - 1))
    return statistic, freedom


@pytest.mark.parametrize(
    ("one", "other"),
    [([0.8, 0.9, 0.85], [0.7, 0.72, 0.71, 0.9]), ([0.1, 0.3], [0.2, 0.5, 0.8]), ([1.0, 1.2, 1.1], [1.0, 1.0, 1.0])],
)
def test_welch_equals_the_formula(one, other):
    got = t_test(one, other)
    statistic, freedom = naive_welch(one, other)
    assert (got.statistic, got.degrees_of_freedom) == pytest.approx((statistic, freedom))
    assert got.p_value == pytest.approx(2 * scipy.stats.t.sf(abs(statistic), freedom))
    assert got.difference == pytest.approx(statistics.mean(one) - statistics.mean(other))


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ([1.0], [1.0, 2.0], "two values or more on either side; got 1 and 2; run more seeds"),
        ([1.0, 1.0], [2.0, 2.0], "both sides have no variance"),
        # three times the same number, but for rounding
        ([0.3, 0.1 + 0.2, 0.3], [0.5, 0.5, 0.5], "both sides have no variance"),
    ],
)
def test_a_test_that_is_not_defined_is_refused(one, other, message):
    with pytest.raises(DataError, match=message):
        t_test(one, other)


def enumerated(gains):
    """Return the difference on the rows, and that on each of the n^n equally likely draws of n rows."""
    n = len(gains)
    return sum(gains) / n, [sum(gains[i] for i in rows) / n for rows in itertools.product(range(n), repeat=n)]


@pytest.mark.covering
@pytest.mark.parametrize(
    "gains", [[1, 0, 0, 1, 0], [1, -1, 1, 0, 1], [0.5, 0.25, -0.25, 0.125, 0.5], [-1, -1, 0, 0, 0]]
)
def test_the_bootstrap_comes_close_to_all_draws(gains):
    observed, draws = enumerated(gains)
    chance = sum(abs(draw - observed) >= abs(observed) - 1e-9 for draw in draws) / len(draws)
    got = paired_bootstrap([1 + gain for gain in gains], [1] * 5, samples=20_000)
    assert got.difference == pytest.approx(observed)
    assert got.p_value == pytest.approx(chance, abs=0.015)  # four standard errors of 20,000 draws
    assert (got.lower, got.upper) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=1e-6)


def test_the_interval_is_scipys():
    generator = np.random.default_rng(0)
    a, b = generator.random((2, 200))
    got = paired_bootstrap(a, b, samples=5000)
    expected = scipy.stats.bootstrap((a - b,), np.mean, n_resamples=5000, method="percentile").confidence_interval
    assert (got.lower, got.upper) == pytest.approx((expected.low, expected.high), abs=0.006)


def test_equal_systems_do_not_differ():
    got = paired_bootstrap([1, 0, 1], [1, 0, 1], samples=50)
    assert (got.difference, got.p_value, got.lower, got.upper) == (0, 1, 0, 0)


def test_the_seed_decides():
    a, b = np.random.default_rng(2).random((2, 30))
    first = paired_bootstrap(a, b, samples=300, seed=5)
    assert paired_bootstrap(a, b, samples=300, seed=5) == first
    assert paired_bootstrap(a, b, samples=300, seed=6) != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [0]), "two rows or more; got 1"),
        (([1, 0], [1]), "2 values against 1"),
        (([1, 0], [1, float("nan")]), "the scores of b have a NaN"),
    ],
)
def test_unusable_systems_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        paired_bootstrap(*arguments)


@pytest.mark.parametrize("greater_is_better", [True, False])
@given(scores=st.lists(st.integers(0, 6).map(lambda tenth: tenth / 10), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_expected_best_equals_that_of_all_tuples(greater_is_better, scores):
    mean, std = expected_validation_performance(scores, greater_is_better=greater_is_better)
    best = max if greater_is_better else min
    for k in range(1, len(scores) + 1):
        values = [best(draws) for draws in itertools.product(scores, repeat=k)]
        assert mean[k - 1] == pytest.approx(statistics.fmean(values))
        assert std[k - 1] == pytest.approx(statistics.pstdev(values), abs=1e-9)


def step_down(p_values, alpha):
    """Return which are significant: from the smallest on, until the first that is not."""
    significant = [False] * len(p_values)
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > alpha / (len(p_values) - place):
            break
        significant[index] = True
    return significant


@given(
    st.lists(st.integers(0, 1000).map(lambda number: number / 1000), max_size=8), st.sampled_from([0.013, 0.0511, 0.21])
)
@settings(max_examples=100, deadline=None)
def test_holm_decides_as_the_step_down_procedure(p_values, alpha):
    adjusted = holm(p_values)
    assert [value <= alpha for value in adjusted] == step_down(p_values, alpha)
    assert all(p <= value <= 1 for p, value in zip(p_values, adjusted, strict=True))


def test_holm_worked_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert Counter(holm([0.02, 0.02])) == {0.04: 2}
    assert holm([]) == []
    with pytest.raises(DataError, match="expected values from 0 to 1"):
        holm([0.5, 1.2])


@pytest.mark.parametrize("rows", [4, 10, 400])
def test_four_of_five_studies_find_the_difference_that_is_called_the_smallest_seen(rows):
    drawn = np.random.default_rng(rows).normal(size=(2200, rows))
    seen = [smallest_seen(*mean_interval(row), rows - 1) for row in drawn[:200]]  # of studies without a difference
    shifted = drawn[200:] + np.sqrt(np.mean(np.square(seen)))
    found = scipy.stats.ttest_1samp(shifted, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.05)
