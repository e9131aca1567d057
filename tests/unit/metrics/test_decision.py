"""Decisions: what is answered for probabilities, against all thresholds and weights there are."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from foretoken.errors import DataError
from foretoken.metrics.decision import FEWEST, Decision, cost_thresholds, cost_weights, fit_thresholds, fit_weights
from foretoken.metrics.multi_label import multi_label_metrics
from foretoken.metrics.scaling import Scaling, fit_label_scaling


def rare(seed, count=300, rate=0.07):
    """Two classes, of which one is rare and has a higher score on average."""
    chance = np.random.default_rng(seed)
    truth = (chance.random(count) < rate).astype(int)
    scores = (1 / (1 + np.exp(-(chance.normal(size=count) + 2 * truth - 3)))).round(2)
    return np.column_stack([1 - scores, scores]), truth


@pytest.mark.parametrize("seed", range(10))
def test_no_threshold_of_two_classes_has_a_better_f1(seed):
    probabilities, truth = rare(seed)
    fitted = f1_score(truth, fit_weights(probabilities, truth).apply(probabilities))
    best = max(f1_score(truth, probabilities[:, 1] > value) for value in np.unique(probabilities[:, 1]) - 1e-9)
    assert fitted == pytest.approx(best)
    assert fitted > f1_score(truth, probabilities.argmax(axis=1))


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_many_classes_raise_the_mean_f1(seed):
    chance = np.random.default_rng(seed)
    truth = chance.choice(5, p=[0.6, 0.2, 0.1, 0.06, 0.04], size=400)
    logits = chance.normal(size=(400, 5)) + 1.5 * np.eye(5)[truth] + np.log([0.6, 0.2, 0.1, 0.06, 0.04])
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    decided = fit_weights(probabilities, truth).apply(probabilities)
    before = f1_score(truth, probabilities.argmax(axis=1), average="macro", zero_division=0)
    assert f1_score(truth, decided, average="macro", zero_division=0) > before + 0.01


@pytest.mark.parametrize("seed", range(3))
def test_costs_are_those_of_the_least_expected_cost(seed):
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(3), 100)
    costs = {"a": 1.0, "b": 5.0, "c": 0.5}
    expected = np.array(list(costs.values()))
    missed = (probabilities * expected).sum(axis=1, keepdims=True) - probabilities * expected  # by the answer
    assert cost_weights(costs, ["a", "b", "c"]).apply(probabilities).tolist() == missed.argmin(axis=1).tolist()
    marked = cost_thresholds(costs, ["a", "b", "c"]).apply(probabilities)
    assert marked.tolist() == (probabilities * expected > 1 - probabilities).astype(int).tolist()


def label_sets(seed, count=250):
    chance = np.random.default_rng(seed)
    rates = np.array([0.5, 0.2, 0.08, 0.03, 0.004])
    truth = (chance.random((count, 5)) < rates).astype(int)
    logits = chance.normal(size=truth.shape) + 2 * truth + np.log(rates)
    return 1 / (1 + np.exp(-logits)), truth


@pytest.mark.parametrize("seed", range(3))
def test_one_threshold_is_the_best_of_all(seed):
    probabilities, truth = label_sets(seed)
    for average in ("micro", "macro"):
        fitted = fit_thresholds(probabilities, truth, average=average, per_label=False).apply(probabilities)
        scores = [
            f1_score(truth, probabilities >= value, average=average, zero_division=0)
            for value in np.linspace(0.01, 0.99, 99)
        ]
        assert f1_score(truth, fitted, average=average, zero_division=0) >= max(scores) - 0.01  # at 256 quantiles


def test_thresholds_of_labels_are_the_best_of_each_for_macro_f1():
    probabilities, truth = label_sets(0, 120)
    decision = fit_thresholds(probabilities, truth, average="macro")
    shared = fit_thresholds(probabilities, truth, average="macro", per_label=False).thresholds[0]
    for label, held in enumerate(truth.T):
        if held.sum() < FEWEST:
            assert decision.thresholds[label] == shared
            continue
        best = max(f1_score(held, probabilities[:, label] >= value) for value in probabilities[:, label])
        assert f1_score(held, decision.apply(probabilities)[:, label]) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(3))
def test_thresholds_of_labels_are_the_best_of_all_for_micro_f1(seed):
    """With three labels and few documents, all combinations can be tried."""
    probabilities, truth = (table[:40, :3] for table in label_sets(seed, 400))
    truth = truth.copy()
    truth[:FEWEST] = 1
    decided = fit_thresholds(probabilities, truth).apply(probabilities)
    cuts = [np.append(np.unique(column), 2.0) for column in probabilities.T]
    hits = [
        np.array([((column >= cut) & (held == 1)).sum() for cut in cut_list])
        for column, held, cut_list in zip(probabilities.T, truth.T, cuts, strict=True)
    ]
    marks = [
        np.array([(column >= cut).sum() for cut in cut_list])
        for column, cut_list in zip(probabilities.T, cuts, strict=True)
    ]
    all_hits = hits[0][:, None, None] + hits[1][:, None] + hits[2]
    all_marks = marks[0][:, None, None] + marks[1][:, None] + marks[2]
    best = (2 * all_hits / (all_marks + truth.sum())).max()
    assert f1_score(truth, decided, average="micro") == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    "values",
    [{}, {"weights": [1.0], "thresholds": [0.5]}, {"weights": [0.0, 1.0]}, {"weights": ["a"]}, {"other": [1]}, None, 3],
)
def test_a_damaged_decision_is_refused(values):
    with pytest.raises(DataError, match="decision"):
        Decision.from_dict(values)


def test_a_decision_of_other_classes_is_refused():
    with pytest.raises(DataError, match="2 classes"):
        Decision(weights=(1.0, 2.0)).apply(np.ones((4, 3)) / 3)


def test_metrics_of_several_labels_are_those_of_scikit_learn():
    probabilities, truth = label_sets(1)
    marked = probabilities >= 0.5
    found = multi_label_metrics(probabilities, truth)
    for name, score in {"f1": f1_score, "precision": precision_score, "recall": recall_score}.items():
        for average in ("micro", "macro", "samples"):
            empty = int(average == "samples")
            assert found[f"{name}_{average}"] == score(truth, marked, average=average, zero_division=empty)
    there = truth.any(axis=0)
    assert found["map"] == average_precision_score(truth[:, there], probabilities[:, there], average="macro")
    assert found["subset_accuracy"] == (truth == marked).all(axis=1).mean()
    assert found["brier"] == pytest.approx(((probabilities - truth) ** 2).mean())


def test_a_document_without_labels_that_is_answered_so_is_right():
    found = multi_label_metrics([[0.1, 0.2], [0.9, 0.1]], [[0, 0], [1, 0]])
    assert found["f1_samples"] == found["subset_accuracy"] == found["f1_micro"] == 1.0


def test_scaling_of_labels_lowers_their_likelihood_and_is_saved():
    probabilities, truth = label_sets(2, 2000)
    logits = np.log(probabilities / (1 - probabilities))
    sure = 1 / (1 + np.exp(-3 * logits - 1))
    for kind in ("temperature", "vector"):
        scaling = fit_label_scaling(kind, sure, truth)
        scaled = scaling.apply(sure)
        assert multi_label_metrics(scaled, truth)["nll"] < multi_label_metrics(sure, truth)["nll"]
        assert (np.argsort(scaled[:, 0]) == np.argsort(sure[:, 0])).all()  # no label's order changes
        again = Scaling.from_dict(scaling.to_dict())
        np.testing.assert_allclose(again.apply(sure), scaled)
    assert multi_label_metrics(scaled, truth)["ece_classwise"] < 0.02
