"""`method: tf-idf` from the command line: one more run, which predicts, is evaluated and reported."""

import json
import re

import pyarrow.parquet as pq
import pytest

from foretoken.inference.evaluate import measure_test
from foretoken.training.recipe.recipe import load_recipe
from foretoken.training.run.train import train

from support.tiny_generation import copies, write_rows


@pytest.fixture
def recipe(tiny, tmp_path):
    def make(**changes):
        values = {"method": "tf-idf", "model": "no/such-model", "training": {"learning_rate": "auto"}} | changes
        return tiny.recipe(tmp_path / "recipe.yaml", **values)

    return make


@pytest.fixture
def run(recipe, cli, tmp_path):
    result = cli("train", recipe())
    assert result.code == 0, result.err
    assert "what the recipe says of model, lengths and training has no effect" in result.err
    return tmp_path / "runs" / "run"


def test_the_folder_is_that_of_a_run(run, record, recipe, cli):
    values = record(run)
    assert values["status"] == "finished"
    assert values["test"]["accuracy"] == 1.0  # a single word gives the label away
    assert values["best"]["value"] == values["validation"]["f1_macro"]
    assert values["parameters"]["trainable"] == values["parameters"]["total"] > 100
    assert values["timings"]["step_seconds_median"] is None
    assert values["recipe"]["training"]["learning_rate"] == "auto"
    rows = pq.read_table(run / "predictions.parquet").to_pylist()
    assert {row["split"] for row in rows} == {"validation", "test"}
    assert all(row["prob_ham"] + row["prob_spam"] == pytest.approx(1) for row in rows)
    files = {"foretoken.json", "tfidf.json", "tfidf.safetensors", "validation.parquet"}
    assert {path.name for path in (run / "model").iterdir()} == files
    again = cli("train", recipe())
    assert "is not repeated" in again.err
    assert "tf-idf" in again.out
    assert cli("train", recipe(), "--restart").code == 0
    assert not list(run.glob(".foretoken-*"))
    assert record(run.with_name(f"{run.name}.1")) == values


def test_it_predicts_and_is_evaluated_as_in_its_run(run, cli, tiny, tmp_path, record):
    result = cli("predict", run, "word1 winner word2", "lunch word3 word4")
    assert [json.loads(line)["label"] for line in result.out.splitlines()] == ["spam", "ham"]
    measured = cli("evaluate", run, tiny.data, "--output", tmp_path / "all.parquet")
    assert measured.code == 0
    assert re.search(r"accuracy +1\.0000", measured.out)
    theirs = {row["id"]: row for row in pq.read_table(tmp_path / "all.parquet").to_pylist()}
    test = [row for row in pq.read_table(run / "predictions.parquet").to_pylist() if row["split"] == "test"]
    assert test
    for row in test:
        assert row["prob_spam"] == theirs[row["id"]]["prob_spam"]
        assert row["tokens"] == theirs[row["id"]]["tokens"]


def test_a_test_split_that_was_left_out_is_measured_later(recipe, tmp_path):
    chosen = load_recipe(recipe())
    assert "test" not in train(chosen, measure_test=False)
    values = measure_test(chosen)
    assert values["test"]["accuracy"] == 1.0
    rows = pq.read_table(chosen.run_folder / "predictions.parquet")["split"].to_pylist()
    assert rows.count("test") == 12


def test_numbers_are_predicted_too(recipe, cli, record, tmp_path):
    data = tmp_path / "numbers.csv"
    data.write_text("text,label\n" + "".join(f"{'prize ' * (n % 5)}word{n % 3} word,{n % 5}\n" for n in range(60)))
    assert cli("train", recipe(data={"path": str(data), "problem": "regression"})).code == 0
    run = tmp_path / "runs" / "run"
    assert record(run)["test"]["pearson"] > 0.9
    values = [
        json.loads(line)["value"] for line in cli("predict", run, "prize prize prize", "word1 word").out.splitlines()
    ]
    assert values[0] > values[1]


def test_what_needs_a_model_is_refused_in_one_line(run, recipe, refused, tiny, tmp_path):
    assert "tf-idf baseline, which has no pretrained model" in refused("fuse", run, "-o", tmp_path / "fused")
    write_rows(tmp_path / "rows.jsonl", copies(40))
    data = {"path": str(tmp_path / "rows.jsonl"), "problem": "generation"}
    assert "method tf-idf is for classification, multi-label-classification, regression, got" in refused(
        "train", recipe(data=data, name="third")
    )
    assert not (tmp_path / "runs" / "third").exists()
    assert "method.minimum: no such key" in refused("train", recipe(method={"name": "tf-idf", "minimum": 3}))
    assert "did you mean 'tf-idf'?" in refused("train", recipe(method="tfidf"))
