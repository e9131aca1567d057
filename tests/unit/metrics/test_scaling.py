"""Temperature and vector scaling: known temperatures, brute-force minima, and data that would lead to infinity."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from foretoken.errors import DataError
from foretoken.metrics.scaling import Scaling, fit_temperature, fit_vector
from foretoken.metrics.scores import negative_log_likelihood

FITS = [fit_temperature, fit_vector]
LOGITS = arrays(np.float64, st.tuples(st.integers(1, 25), st.integers(2, 4)), elements=st.floats(-30, 30, width=32))


def drawn(rows, classes, seed, scale=2.0):
    """Return logits (n, C), and labels drawn from their softmax."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=scale, size=(rows, classes))
    return logits, (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)


def temperature_of(scaling):
    return scaling.to_dict()["temperature"]


def naive_objective(weight, bias, probabilities, labels):
    """Return the summed loss and the penalty, row by row."""
    total = 0.0
    for row, label in zip(probabilities, labels, strict=True):
        total -= log_softmax(np.log(row) * weight + bias)[label]
    return total + (np.sum((weight - 1) ** 2) + np.sum(bias**2)) / 2


@pytest.mark.parametrize("rows", [3, 60])
def test_a_temperature_is_the_minimum_of_its_definition(rows):
    logits, labels = drawn(rows, 3, seed=rows)
    probabilities = softmax(3 * logits, axis=1)
    best = minimize_scalar(
        lambda weight: naive_objective(np.array([weight]), np.zeros(1), probabilities, labels),
        bounds=(0.05, 10),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fit_temperature(probabilities, labels).weight == pytest.approx((best.x,), rel=1e-5)


def test_a_vector_is_the_minimum_of_its_definition():
    logits, labels = drawn(10, 3, seed=5)
    probabilities = softmax(2 * logits, axis=1)
    best = minimize(
        lambda values: naive_objective(values[:3], values[3:], probabilities, labels),
        np.r_[np.ones(3), np.zeros(3)],
        method="Powell",
        options={"xtol": 1e-9, "ftol": 1e-13, "maxiter": 100},
    )
    found = fit_vector(probabilities, labels)
    np.testing.assert_allclose([*found.weight, *found.bias], best.x, atol=1e-3)
    assert naive_objective(np.array(found.weight), np.array(found.bias), probabilities, labels) <= best.fun + 1e-9


@given(LOGITS, st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_the_loss_on_the_fitted_rows_never_rises(logits, seed):
    probabilities = softmax(logits, axis=1)
    labels = np.random.default_rng(seed).integers(logits.shape[1], size=len(logits))
    before = negative_log_likelihood(probabilities, labels)
    for fit in FITS:
        assert negative_log_likelihood(fit(probabilities, labels).apply(probabilities), labels) <= before + 1e-9


@given(LOGITS, st.floats(0.01, 20))
@settings(max_examples=50, deadline=None)
def test_a_temperature_keeps_the_prediction_and_gives_probabilities(logits, temperature):
    probabilities = softmax(logits, axis=1)
    scaled = Scaling("temperature", (1 / temperature,), (0.0,)).apply(probabilities)
    np.testing.assert_allclose(scaled.sum(axis=1), 1)
    rows = np.arange(len(logits))
    # What was the largest still is, up to rounding: two that were nearly equal may have become equal.
    np.testing.assert_allclose(scaled[rows, probabilities.argmax(axis=1)], scaled.max(axis=1), atol=1e-12)


def test_apply_is_the_softmax_of_the_scaled_logits():
    logits, _ = drawn(20, 4, seed=0, scale=5)
    probabilities = softmax(logits, axis=1)
    assert Scaling("temperature", (0.25,), (0.0,)).apply(probabilities) == pytest.approx(softmax(logits / 4, axis=1))
    weight, bias = (0.5, 1.0, 2.0, -1.0), (0.0, 1.0, -1.0, 0.5)
    expected = softmax(log_softmax(logits, axis=1) * weight + np.array(bias), axis=1)
    assert Scaling("vector", weight, bias).apply(probabilities) == pytest.approx(expected)


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_rows_that_are_all_right_or_all_wrong_do_not_lead_to_0_or_infinity(rows):
    for label, (least, most) in ((0, (0.3, 1)), (1, (1, 20))):
        labelled = [[0.95, 0.05]] * rows, [label] * rows
        assert least < temperature_of(fit_temperature(*labelled)) <= most
        vector = fit_vector(*labelled)
        assert max(map(abs, (*vector.weight, *vector.bias))) < 4


def test_probabilities_of_exactly_0_and_1():
    certain = np.array([[1.0, 0.0], [0.0, 1.0]] * 20)
    right = [0, 1] * 20
    assert temperature_of(fit_temperature(certain, right)) == 1
    wrong_once = [*right[:-1], 0]
    for fit in FITS:
        scaled = fit(certain, wrong_once).apply(certain)
        assert np.isfinite(scaled).all()
        assert negative_log_likelihood(scaled, wrong_once) < 1


def test_a_class_without_rows_keeps_a_probability():
    logits, _ = drawn(200, 3, seed=0, scale=1)
    labels = logits[:, :2].argmax(axis=1)
    vector = fit_vector(softmax(logits, axis=1), labels)
    scaled = vector.apply(softmax(logits, axis=1))
    assert np.isfinite([*vector.weight, *vector.bias]).all()
    assert 0 < scaled[:, 2].mean() < softmax(logits, axis=1)[:, 2].mean()
    assert vector.bias[2] > -10


def test_padding_gets_no_probability_at_any_temperature_that_is_fitted():
    scaled = Scaling("temperature", (1 / 20,), (0.0,)).apply([[0.75, 0.25, 0.0], [0.25, 0.25, 0.5]])
    assert scaled[0, 2] < 1e-14


@pytest.mark.parametrize("fit", FITS)
def test_goes_through_json_unchanged(fit):
    for seed in range(20):
        logits, labels = drawn(50, 3, seed=seed)
        scaling = fit(softmax(2 * logits, axis=1), labels)
        assert Scaling.from_dict(json.loads(json.dumps(scaling.to_dict()))) == scaling


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "got {}; expected a mapping of kind 'temperature' or 'vector'"),
        ({"kind": "temperature"}, "keys are kind; expected kind, temperature"),
        ({"kind": "temperature", "temperature": 2, "bias": [0]}, "keys are bias, kind, temperature"),
        ({"kind": "temperature", "temperature": 0}, "does not hold usable numbers"),
        ({"kind": "temperature", "temperature": -2}, "no temperature"),
        ({"kind": "temperature", "temperature": float("nan")}, "not all finite"),
        ({"kind": "vector", "weight": [1, 1], "bias": [0]}, "2 weights and 1 biases"),
        ({"kind": "vector", "weight": ["a", 1], "bias": [0, 0]}, "does not hold usable numbers"),
    ],
)
def test_unusable_files(values, message):
    with pytest.raises(DataError, match=message):
        Scaling.from_dict(values)


def test_another_number_of_classes_is_named():
    with pytest.raises(DataError, match="fitted for 2 classes, but the probabilities have 3; fit it anew"):
        Scaling("vector", (1.0, 1.0), (0.0, 0.0)).apply([[0.5, 0.25, 0.25]])


def test_logits_are_refused():
    with pytest.raises(DataError, match="are these logits"):
        Scaling("temperature", (1.0,), (0.0,)).apply([[3.0, -1.0]])
    for fit in FITS:
        with pytest.raises(DataError, match="are these logits"):
            fit([[3.0, -1.0]], [0])
