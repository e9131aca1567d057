"""A problem and a metric from outside the package: one class, one row each; data, loss, metrics and cards follow."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from sklearn.metrics import mean_absolute_error
from torch import nn

from foretoken.data.options import DataOptions
from foretoken.data.problems import PROBLEMS as DATA
from foretoken.data.problems import Answer, ProblemData, Rows
from foretoken.errors import ConfigError
from foretoken.metrics import METRICS, Metric, metric_names
from foretoken.training.problems import PROBLEMS, make_problem
from foretoken.training.problems.losses import at_least_float32
from foretoken.training.problems.regression import Regression
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.train import train

from support.tiny_run import FILLER, save_tiny_model, write_csv

NAME = "robust-regression"


@dataclass(frozen=True)
class RobustRegression(Regression):
    """A number per text, trained on with Huber's loss."""

    name: ClassVar[str] = NAME

    def loss(self, logits, labels):
        logits = at_least_float32(logits)
        return nn.functional.huber_loss(logits.reshape(labels.shape), labels.to(logits.dtype))


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(DATA, NAME, ProblemData(Rows.TEXTS, Answer.NUMBER, ("text", "label")))
    monkeypatch.setitem(PROBLEMS, NAME, RobustRegression)
    row = Metric("Mean absolute error", False, (Answer.NUMBER,), "error", compute=mean_absolute_error)
    monkeypatch.setitem(METRICS, "mae", row)


def test_it_is_trained_measured_and_described(toy, tmp_path):
    rows = [(f"{FILLER[index % 7]} {FILLER[index % 40]}", index % 7 + index % 3 / 2) for index in range(60)]
    recipe = build_recipe(
        {
            "model": str(save_tiny_model(tmp_path / "model")),
            "data": {"path": str(write_csv(tmp_path / "a.csv", rows)), "problem": NAME},
            "method": "bitfit",
            "output": str(tmp_path / "runs"),
            "training": {"metric": "mae", "epochs": 1, "learning_rate": 1e-3, "precision": "fp32"},
        }
    )
    record = train(recipe)
    assert record["problem"] == NAME
    assert record["best"]["metric"] == "mae"
    assert record["test"]["mae"] ** 2 <= record["test"]["mse"]
    assert record["baselines"].keys() == {"mean", "tf-idf"}
    card = (recipe.run_folder / "adapter" / "README.md").read_text()
    assert f"The problem is {NAME}" in card
    assert "| Mean absolute error |" in card


def test_its_loss_is_its_own_and_the_rest_follows_from_what_it_answers(toy):
    values, labels = torch.tensor([[0.5], [4.0]]), torch.tensor([0.0, 0.0])
    assert make_problem(NAME).loss(values, labels) == pytest.approx((0.5 * 0.5**2 + (4 - 0.5)) / 2)
    with pytest.raises(ConfigError, match="labels is for classification and multi-label-classification, got problem"):
        DataOptions(path="a.csv", problem=NAME, labels=("x",))
    assert "mae" in metric_names(None, NAME)
    assert make_problem("regression").measure([1.0, 3.0], [1.0, 2.0])["mae"] == 0.5  # the metric is not the problem's
