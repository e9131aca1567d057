"""The linear model that a head starts as, against scikit-learn's, and the folds that choose its strength."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.training import linear_probe
from foretoken.training.linear_probe import fit_probe, inner_folds
from foretoken.training.problems import make_problem

CHANCE = np.random.default_rng(0)
X = CHANCE.normal(size=(60, 7)) * [1, 20, 0.01, 1, 1, 1, 0] + [0, 5, 3, 0, 0, 0, 2]  # the last is the same everywhere
SCORES = np.stack([X[:, 0], -X[:, 3], X[:, 1] / 20], axis=1) + CHANCE.normal(size=(60, 3))


def behind_scaler(model):
    return make_pipeline(StandardScaler(), model)


def classes(count, strength):
    """Two outputs share what a single one of scikit-learn's has: half of the weight each, half of the penalty."""
    y = SCORES[:, :count].argmax(axis=1)
    c = 2 * strength if count == 2 else strength
    model = behind_scaler(LogisticRegression(C=c, tol=1e-10, max_iter=10_000)).fit(X, y)
    problem = make_problem("classification", [f"c{number}" for number in range(count)])
    return problem, y, count, lambda rows: model.predict_log_proba(rows), lambda z: z.log_softmax(dim=1)


def several(strength):
    """Each label is scikit-learn's, with the same C."""
    y = (SCORES > 0.4).astype(float)
    models = [
        behind_scaler(LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)).fit(X, column) for column in y.T
    ]
    problem = make_problem("multi-label-classification", ["x", "y", "z"])
    return problem, y, 3, lambda rows: np.stack([m.decision_function(rows) for m in models], axis=1), lambda z: z


def numbers(count, strength):
    """Squares without a half: alpha is 1 / (2 C)."""
    y = SCORES[:, :count] if count > 1 else SCORES[:, 0]
    model = behind_scaler(Ridge(alpha=1 / (2 * strength))).fit(X, y)
    problem = make_problem("regression", [])
    return problem, y, count, lambda rows: model.predict(rows).reshape(len(rows), -1), lambda z: z


ORACLES = {
    "two classes": lambda strength: classes(2, strength),
    "three classes": lambda strength: classes(3, strength),
    "labels": several,
    "a number": lambda strength: numbers(1, strength),
    "numbers": lambda strength: numbers(2, strength),
}


@pytest.mark.parametrize("strength", [3e-4, 0.03, 1.0])
@pytest.mark.parametrize("oracle", ORACLES)
def test_it_is_scikit_learns(oracle, strength, monkeypatch):
    monkeypatch.setattr(linear_probe, "STRENGTHS", (strength,))
    problem, y, outputs, expected, compared = ORACLES[oracle](strength)
    probe = fit_probe(torch.tensor(X), torch.tensor(y), problem.loss, outputs, inner_folds(range(60), range(60)))
    assert probe.strength == strength
    found = compared(torch.tensor(X) @ probe.weight.T + probe.bias).numpy()
    np.testing.assert_allclose(found, expected(X), atol=2e-4)


def test_the_strength_is_the_one_with_the_lowest_loss_of_documents_that_are_held_out():
    y = SCORES.argmax(axis=1)
    folds = inner_folds(y.tolist(), range(60))
    probe = fit_probe(torch.tensor(X), torch.tensor(y), F.cross_entropy, 3, folds)
    losses = {}
    for strength in linear_probe.STRENGTHS:
        held = np.zeros((60, 3))
        for fold in folds:
            rest = np.setdiff1d(np.arange(60), fold)
            model = behind_scaler(LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)).fit(X[rest], y[rest])
            held[fold] = model.predict_proba(X[fold])
        losses[strength] = log_loss(y, held), held
    best = min(losses, key=lambda strength: losses[strength][0])
    assert best not in (linear_probe.STRENGTHS[0], linear_probe.STRENGTHS[-1])
    assert (probe.strength, probe.loss) == (best, pytest.approx(losses[best][0], abs=1e-4))
    found = probe.outputs.softmax(dim=1).numpy()
    np.testing.assert_allclose(found, losses[best][1][probe.held_out], atol=1e-4)


def test_too_few_to_hold_any_out_have_the_strength_that_is_said():
    probe = fit_probe(torch.tensor(X[:1]), torch.tensor([1.5]), make_problem("regression", []).loss, 1, [])
    assert (probe.strength, np.isnan(probe.loss), len(probe.held_out)) == (0.01, True, 0)
    assert float(torch.tensor(X[:1]) @ probe.weight.T + probe.bias) == pytest.approx(1.5)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sizes", [(50, 30, 7), (5, 5), (2, 1), (1, 1), (40,), (1, 1, 1, 1, 1, 1, 1)])
def test_folds_hold_every_document_out_once_and_have_the_classes_alike(sizes, seed):
    keys = [number for number, size in enumerate(sizes) for _ in range(size)]
    folds = inner_folds(keys, range(len(keys)), seed=seed)
    assert 2 <= len(folds) <= 5
    assert sorted(number for fold in folds for number in fold) == list(range(len(keys)))
    for key in set(keys):
        counts = [sum(keys[number] == key for number in fold) for fold in folds]
        assert max(counts) - min(counts) <= 1


def test_documents_of_one_group_are_held_out_together_and_of_many_documents_one_fold_alone():
    chance = np.random.default_rng(1)
    groups, keys = chance.integers(0, 25, 100).tolist(), chance.integers(0, 2, 100).tolist()
    folds = inner_folds(keys, groups)
    assert sorted(number for fold in folds for number in fold) == list(range(100))
    assert sum(len({groups[number] for number in fold}) for fold in folds) == len(set(groups))
    (held,) = inner_folds([0, 1] * 2000, range(4000))
    assert len(held) == 800
    assert inner_folds([1], [0]) == inner_folds([0, 1, 0], ["same"] * 3) == []
