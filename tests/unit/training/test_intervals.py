"""Bootstrap intervals against the plain loop: draw rows, measure with scikit-learn, take the quantiles."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

from foretoken.training.run.intervals import bootstrap_intervals

ROWS = np.random.default_rng(0)


def looped(labels, predictions, metric, samples=150):
    draws = (ROWS.integers(len(labels), size=len(labels)) for _ in range(samples))
    return np.quantile([metric(labels[rows], predictions[rows]) for rows in draws], [0.025, 0.975])


@pytest.mark.parametrize("classes", [("b", "a"), ("a", "b", "c")])
def test_intervals_of_classes_are_those_of_the_loop(classes):
    labels = ROWS.choice(classes, size=200)
    predictions = np.where(ROWS.random(200) < 0.7, labels, ROWS.choice(classes, size=200))
    found = bootstrap_intervals("classification", labels.tolist(), predictions.tolist(), classes=classes, samples=3000)
    measures = {"accuracy": accuracy_score, "f1_macro": lambda y, p: f1_score(y, p, average="macro")}
    if len(classes) == 2:
        measures["f1"] = lambda y, p: f1_score(y, p, pos_label=classes[1])
    assert found.keys() == measures.keys()
    for name, metric in measures.items():
        assert found[name] == pytest.approx(looped(labels, predictions, metric), abs=0.04)
        assert found[name][0] < metric(labels, predictions) < found[name][1]


def test_intervals_of_numbers_and_choices():
    labels = ROWS.normal(size=200)
    predictions = labels + ROWS.normal(size=200)
    found = bootstrap_intervals("regression", labels.tolist(), predictions.tolist())
    assert found["mse"] == pytest.approx(looped(labels, predictions, mean_squared_error), abs=0.08)
    correlation = looped(labels, predictions, lambda y, p: np.corrcoef(y, p)[0, 1])
    assert found["pearson"] == pytest.approx(correlation, abs=0.04)
    right = bootstrap_intervals("multiple-choice", [0] * 100, [0] * 80 + [1] * 20)["accuracy"]
    assert right == pytest.approx((0.72, 0.87), abs=0.02)


def test_the_same_seed_gives_the_same_interval_and_some_have_none():
    given = ("classification", ["a", "b"] * 20, ["a", "a"] * 20)
    assert bootstrap_intervals(*given) == bootstrap_intervals(*given)
    assert "pearson" not in bootstrap_intervals("regression", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    assert bootstrap_intervals("generation", [["x"], ["y"]], ["x", "y"]) == {}
    assert bootstrap_intervals("classification", ["a"], ["a"]) == {}
