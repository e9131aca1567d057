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
from foretoken.training.linear_probe import fit_probe
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


FOLDS = [list(range(first, 60, 5)) for first in range(5)]
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
    probe = fit_probe(torch.tensor(X), torch.tensor(y), problem.loss, outputs, FOLDS)
    assert probe.strength == strength
    found = compared(torch.tensor(X) @ probe.weight.T + probe.bias).numpy()
    np.testing.assert_allclose(found, expected(X), atol=2e-4)


@pytest.mark.parametrize("strength", [3e-4, 1.0])
def test_with_one_scale_it_is_scikit_learns_of_features_divided_by_one_number(strength, monkeypatch):
    monkeypatch.setattr(linear_probe, "STRENGTHS", (strength,))
    y, x = SCORES.argmax(axis=1), (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0).mean())
    model = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(x, y)
    probe = fit_probe(torch.tensor(X), torch.tensor(y), F.cross_entropy, 3, FOLDS, one_scale=True)
    found = (torch.tensor(X) @ probe.weight.T + probe.bias).log_softmax(dim=1).numpy()
    np.testing.assert_allclose(found, model.predict_log_proba(x), atol=2e-4)


def test_the_strength_is_the_one_with_the_lowest_loss_of_documents_that_are_held_out():
    y = SCORES.argmax(axis=1)
    probe = fit_probe(torch.tensor(X), torch.tensor(y), F.cross_entropy, 3, FOLDS)
    losses = {}
    for strength in linear_probe.STRENGTHS:
        held = np.zeros((60, 3))
        for fold in FOLDS:
            rest = np.setdiff1d(np.arange(60), fold)
            model = behind_scaler(LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)).fit(X[rest], y[rest])
            held[fold] = model.predict_proba(X[fold])
        losses[strength] = log_loss(y, held), held
    best = min(losses, key=lambda strength: losses[strength][0])
    assert best not in (linear_probe.STRENGTHS[0], linear_probe.STRENGTHS[-1])
    assert (probe.strength, probe.loss) == (best, pytest.approx(losses[best][0], abs=1e-4))
    found = probe.outputs.softmax(dim=1).numpy()
    np.testing.assert_allclose(found, losses[best][1][probe.held_out], atol=2e-3)


def test_too_few_to_hold_any_out_have_the_strength_that_is_said():
    probe = fit_probe(torch.tensor(X[:1]), torch.tensor([1.5]), make_problem("regression", []).loss, 1, [])
    assert (probe.strength, np.isnan(probe.loss), len(probe.held_out)) == (0.01, True, 0)
    assert float(torch.tensor(X[:1]) @ probe.weight.T + probe.bias) == pytest.approx(1.5)
