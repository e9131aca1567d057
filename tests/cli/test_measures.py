"""What is measured beside the metric: parts of a split, scaled probabilities, the test split later or never."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from foretoken.inference.evaluate import measure_test
from foretoken.training.recipe.recipe import load_recipe
from foretoken.training.run.train import train

from support.tiny_run import documents, write_csv


def test_the_test_split_is_measured_later_as_it_is_at_once(tiny, tmp_path, record):
    now = load_recipe(tiny.recipe(tmp_path / "now.yaml", name="now", calibration="temperature"))
    later = load_recipe(tiny.recipe(tmp_path / "later.yaml", name="later", calibration="temperature"))
    at_once = train(now)
    without = train(later, measure_test=False)
    assert "test" not in without
    assert set(pq.read_table(later.run_folder / "predictions.parquet")["split"].to_pylist()) == {"validation"}
    after = measure_test(later)
    assert after == record(later.run_folder)
    assert after["test"] == pytest.approx(at_once["test"], abs=1e-6)
    assert after["scaling"]["test"] == pytest.approx(at_once["scaling"]["test"], abs=1e-6)
    tables = [pq.read_table(recipe.run_folder / "predictions.parquet") for recipe in (now, later)]
    assert tables[0]["id"].to_pylist() == tables[1]["id"].to_pylist()
    assert tables[0].schema.names == tables[1].schema.names
    assert measure_test(later) == after


def test_predict_applies_the_scaling_that_training_fitted(tiny, tmp_path, cli, record):
    assert cli("train", tiny.recipe(tmp_path / "r.yaml", calibration="temperature", training={"epochs": 1})).code == 0
    run = tmp_path / "runs" / "run"
    temperature = record(run)["scaling"]["temperature"]
    texts = ["word1 prize", "word2 lunch"]
    rows = {}
    for option in ((), ("--unscaled",)):
        lines = cli("predict", run, *texts, *option).out.splitlines()
        rows[option] = [list(json.loads(line)["probabilities"].values()) for line in lines]
    logits = np.log(rows[("--unscaled",)]) / temperature
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.array(rows[()]) == pytest.approx(expected, abs=1e-5)
    assert temperature != pytest.approx(1, abs=1e-3)


def test_pairs_of_an_own_file(tiny, tmp_path, cli, refused):
    rows = [(text, f"word{index % 3}", label) for index, (text, label) in enumerate(documents(60))]
    data = write_csv(tmp_path / "pairs.csv", rows, header=("text", "other", "label"))
    options = {"path": str(data), "text_pair_column": "other"}
    assert cli("train", tiny.recipe(tmp_path / "r.yaml", data=options, training={"epochs": 1})).code == 0
    run = tmp_path / "runs" / "run"
    assert cli("evaluate", run, data).code == 0
    predicted = cli("predict", run, "--input", data)
    assert len(predicted.out.splitlines()) == 60
    assert "needs more than a text" in refused("predict", run, "word1 prize")


def test_numbers_of_an_own_file(tiny, tmp_path, cli, record):
    rows = [(text, str(len(text.split()) / 10)) for text, _ in documents(80)]
    data = write_csv(tmp_path / "numbers.csv", rows)
    options = {"path": str(data), "problem": "regression"}
    training = {"metric": "pearson_spearman", "epochs": 2}
    assert cli("train", tiny.recipe(tmp_path / "r.yaml", data=options, training=training)).code == 0
    run = tmp_path / "runs" / "run"
    assert record(run)["test"].keys() == {"pearson", "spearman", "pearson_spearman", "mse"}
    evaluated = cli("evaluate", run, data)
    assert evaluated.code == 0
    assert "pearson_spearman" in evaluated.out
    with data.open() as handle:
        texts = [row["text"] for row in csv.DictReader(handle)]
    value = json.loads(cli("predict", run, texts[0]).out)["value"]
    assert isinstance(value, float)
