"""Guarantees: limits that hold over many draws of documents, beside bounds and coverages computed in other ways."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from foretoken.errors import DataError
from foretoken.metrics.risk import fit_abstention, fit_intervals, fit_label_sets, fit_sets, in_set

DRAWS = 300


def drawn(generator, n, *, steps=None):
    """Return confidences and errors, and the true share of errors above a confidence; in steps, many are equal."""
    confidences = generator.random(n) if steps is None else generator.integers(1, steps + 1, n) / steps
    return confidences, generator.random(n) < _rate(confidences)


def _rate(confidences):
    return 0.2 * (1 - confidences) ** 2 + 0.01 + 0.04 * (np.abs(confidences - 0.9) < 0.03)  # not monotone


def true_risk(threshold, grid):
    return 0.0 if math.isinf(threshold) and threshold > 0 else _rate(grid[grid > threshold]).mean()


@pytest.mark.parametrize("steps", [None, 25], ids=["all different", "many equal"])
def test_the_limit_is_broken_as_seldom_as_the_confidence_says(steps):
    generator = np.random.default_rng(1)
    grid = np.linspace(0, 1, 20_001)[1:] if steps is None else np.arange(1, steps + 1) / steps
    broken, answered = 0, 0
    for _ in range(DRAWS):
        try:
            fitted = fit_abstention(*drawn(generator, 800, steps=steps), max_error=0.05, confidence=0.8)
        except DataError:
            continue
        broken += true_risk(fitted.threshold, grid) > 0.05
        answered += fitted.answered / 800
    assert broken / DRAWS <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / DRAWS)
    assert answered / DRAWS > 0.25


def test_a_threshold_without_a_bound_breaks_it():
    generator = np.random.default_rng(1)
    broken = 0
    for _ in range(DRAWS):
        confidences, wrong = drawn(generator, 800)
        order = np.argsort(-confidences)
        risk = np.cumsum(wrong[order]) / np.arange(1, 801)
        threshold = confidences[order][np.flatnonzero(risk <= 0.05).max()]
        broken += true_risk(threshold, np.linspace(0, 1, 20_001)[1:]) > 0.05
    assert broken / DRAWS > 0.2 + 3 * math.sqrt(0.2 * 0.8 / DRAWS)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_answered_has_the_bound_of_clopper_and_pearson(seed):
    generator = np.random.default_rng(seed)
    confidences, wrong = drawn(generator, int(generator.integers(400, 3000)))
    fitted = fit_abstention(confidences, wrong, max_error=0.1)
    kept = fitted.answers(confidences)
    assert (kept.sum(), wrong[kept].sum()) == (fitted.answered, fitted.errors)
    bound = beta.ppf(1 - 0.05, fitted.errors + 1, fitted.answered - fitted.errors)
    assert bound <= 0.1 < wrong.mean() + 0.1


@pytest.mark.parametrize("max_error", [0.03, 0.05, 0.1])
def test_levels_are_passed_on_as_in_a_graph_of_tests(max_error):
    """Bretz et al. 2009, algorithm 1: in any order, reject what has enough level, and pass its level on."""
    generator = np.random.default_rng(4)
    for _ in range(10):
        confidences, wrong = drawn(generator, n := int(generator.integers(300, 900)))
        errors = np.cumsum(wrong[np.argsort(-confidences)])
        p_values = {m: binom.cdf(errors[m - 1], m, max_error) for m in range(1, n + 1)}
        fewest = math.ceil(math.log(0.0125) / math.log(1 - max_error))
        levels = dict.fromkeys(range(1, n + 2), 0.0)
        for start in (n // 2, n // 4, n // 8, n // 16):
            levels[max(start, fewest)] += 0.0125
        rejected = set()
        while passing := [m for m in p_values if m not in rejected and levels[m] and p_values[m] <= levels[m]]:
            m = passing[generator.integers(len(passing))]
            rejected.add(m)
            levels[next(k for k in range(m, n + 2) if k not in rejected)] += levels.pop(m)
        if rejected:
            assert fit_abstention(confidences, wrong, max_error=max_error).answered == max(rejected)


def test_all_are_answered_where_hardly_any_is_wrong_and_rows_may_have_any_order():
    generator = np.random.default_rng(0)
    confidences, wrong = generator.random(500), np.arange(500) < 5
    fitted = fit_abstention(confidences, wrong)
    assert (fitted.threshold, fitted.answered) == (-math.inf, 500)
    assert fitted.answers([0.0, 1.0]).all()
    confidences, wrong = drawn(generator, 1000)
    order = generator.permutation(1000)
    assert fit_abstention(confidences[order], wrong[order], max_error=0.1) == fit_abstention(
        confidences, wrong, max_error=0.1
    )


def test_what_cannot_be_guaranteed_is_said_with_what_can():
    wrong = np.random.default_rng(0).random(300) < 0.2
    with pytest.raises(
        DataError, match=r"300 labelled documents: 2\d of the answers .* with these (0\.\d+) can be"
    ) as error:
        fit_abstention(np.linspace(1, 0, 300), wrong, max_error=0.05)
    least = float(str(error.value).split("with these ")[1].split()[0])
    assert fit_abstention(np.linspace(1, 0, 300), wrong, max_error=least).answered
    with pytest.raises(DataError, match="cannot be"):
        fit_abstention(np.linspace(1, 0, 300), wrong, max_error=least - 0.01)
    with pytest.raises(DataError, match="with 85 labelled documents: it takes 86 or more"):
        fit_abstention(np.ones(85), np.zeros(85))
    assert fit_abstention(np.ones(86), np.zeros(86)).answered == 86
    with pytest.raises(DataError, match="no max_error can be"):
        fit_abstention([0.5], [True])


def classes(generator, n):
    probabilities = generator.dirichlet([0.4] * 5, n)
    return probabilities, np.array([generator.choice(5, p=row**0.5 / (row**0.5).sum()) for row in probabilities])


def test_sets_and_intervals_hold_the_truth_as_often_as_exchangeability_says():
    generator = np.random.default_rng(2)
    lacking, outside = [], []
    for _ in range(200):
        probabilities, labels = classes(generator, 120)
        right = probabilities[np.arange(120), labels]
        threshold = fit_sets(right[:60], max_error=0.1)
        kept = in_set(probabilities[60:], threshold)
        lacking.append(1 - kept[np.arange(60), labels[60:]].mean())
        errors = generator.standard_t(2, size=(120, 2)) * [1, 100]
        outside.append((np.abs(errors[60:]) > fit_intervals(errors[:60], max_error=0.1)).mean(axis=0))
    assert np.mean(lacking) <= 0.1 + 0.01
    assert np.mean(outside, axis=0) == pytest.approx([6 / 61] * 2, abs=0.015)  # exact for numbers that all differ
    assert kept.any(axis=1).all()


def test_label_sets_miss_no_larger_share_of_the_right_labels():
    generator = np.random.default_rng(3)
    missed, largest = [], []
    for _ in range(200):
        probabilities = generator.beta(0.6, 1.2, size=(160, 6))
        truth = generator.random((160, 6)) < probabilities**1.3
        threshold = fit_label_sets(probabilities[:80], truth[:80], max_error=0.1)
        rates = _missed(probabilities[80:], truth[80:], threshold)
        missed.append(rates.mean())
        above = np.nextafter(threshold, 1)  # no larger threshold passes, by the definition of the rate
        largest.append(_missed(probabilities[:80], truth[:80], above).sum() + 1 > 0.1 * 81)
    assert np.mean(missed) <= 0.1 + 0.005
    assert np.mean(missed) > 0.08
    assert all(largest)


def _missed(probabilities, truth, threshold):
    return (truth & (probabilities < threshold)).sum(axis=1) / np.maximum(truth.sum(axis=1), 1)


@pytest.mark.parametrize("fit", [fit_sets, fit_intervals, lambda x, **more: fit_label_sets([x] * 1, [x > 2], **more)])
def test_too_few_documents_for_a_set_are_said(fit):
    with pytest.raises(DataError, match=r"max_error 0\.1 cannot be guaranteed with .* labelled documents: it takes 9"):
        fit(np.linspace(0, 1, 8), max_error=0.1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: fit_abstention([0.5, np.nan], [0, 0]), "confidences have a NaN"),
        (lambda: fit_abstention([0.5], [0, 1]), "one for each confidence"),
        (lambda: fit_abstention([0.5], [0], confidence=95), "confidence: got 95"),
        (lambda: fit_sets([0.5], max_error=0), "max_error: got 0"),
        (lambda: fit_label_sets([[0.5]], [[1, 0]]), "expected \\(n, L\\) of both"),
    ],
)
def test_unusable_numbers_are_refused(function, message):
    with pytest.raises(DataError, match=message):
        function()
