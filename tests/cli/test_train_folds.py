"""`foretoken train` over folds: every document tested once, whatever was killed in between."""

import json
import shutil
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.metrics import accuracy_score, f1_score

from foretoken.training.run import folds
from foretoken_cli import main

FOLDS = 3


@pytest.fixture(scope="module")
def recipe(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("folds") / "recipe.yaml"
    data = {"path": str(tiny.data), "folds": FOLDS}
    return tiny.recipe(path, data=data, name="mail", training={"epochs": 2, "batch_size": 16})


@pytest.fixture(scope="module")
def done(recipe):
    """The folder of the runs of three folds."""
    assert main(["train", str(recipe)]) == 0
    return recipe.parent / "runs"


def written(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*-fold?/run.json")}


def test_every_document_is_predicted_once_by_a_run_that_did_not_see_it(done, record):
    table = pq.read_table(done / "mail-folds.parquet").to_pydict()
    assert Counter(table["id"]) == Counter(str(number) for number in range(120))
    for fold in range(FOLDS):
        rows = pq.read_table(done / f"mail-fold{fold}" / "predictions.parquet").to_pydict()
        mine = {
            id: said for id, said, at in zip(table["id"], table["prediction"], table["fold"], strict=True) if at == fold
        }
        test = {
            id: said
            for split, id, said in zip(rows["split"], rows["id"], rows["prediction"], strict=True)
            if split == "test"
        }
        validation = {id for split, id in zip(rows["split"], rows["id"], strict=True) if split == "validation"}
        assert mine == test
        assert validation.isdisjoint(test)
        assert record(done / f"mail-fold{fold}")["recipe"]["data"]["fold"] == fold


def test_the_result_is_of_the_pooled_documents_and_the_mean_over_folds(done, record):
    found = json.loads((done / "mail-folds.json").read_text())
    table = pq.read_table(done / "mail-folds.parquet").to_pydict()
    assert found["test"]["accuracy"] == pytest.approx(accuracy_score(table["label"], table["prediction"]))
    assert found["test"]["f1_macro"] == pytest.approx(f1_score(table["label"], table["prediction"], average="macro"))
    each = [record(done / name)["test"]["f1_macro"] for name in found["runs"]]
    assert found["over_folds"]["test"]["f1_macro"] == {
        "mean": pytest.approx(np.mean(each)),
        "std": pytest.approx(np.std(each, ddof=1)),
    }
    assert (found["documents"], found["runs"]) == (120, [f"mail-fold{fold}" for fold in range(FOLDS)])
    assert found["recipe"]["data"]["fold"] is None


def test_a_finished_recipe_repeats_nothing_and_prints_both_rows(done, recipe, cli):
    before = written(done)
    result = cli("train", recipe)
    assert result.code == 0
    assert written(done) == before
    pooled, mean = result.out.splitlines()[1:3]
    assert pooled.startswith("lora, 3 folds pooled")
    assert mean.startswith("lora, mean over folds")
    assert "mail-folds.json" in result.out


def test_a_kill_between_folds_leaves_the_rest_to_be_done(done, recipe, tmp_path, cli, monkeypatch):
    shutil.copytree(done, tmp_path / "runs")
    expected = (tmp_path / "runs" / "mail-folds.json").read_text()
    for name in ("mail-folds.json", "mail-folds.parquet"):
        (tmp_path / "runs" / name).unlink()
    for fold in (1, 2):
        shutil.rmtree(tmp_path / "runs" / f"mail-fold{fold}")
    real, kept = folds.train, written(tmp_path / "runs")

    def killed(one, **options):
        if one.data.fold == 2:
            raise KeyboardInterrupt
        return real(one, **options)

    monkeypatch.setattr(folds, "train", killed)
    assert cli("train", recipe, "-o", tmp_path / "runs").code == 130
    assert not (tmp_path / "runs" / "mail-folds.json").exists()
    monkeypatch.setattr(folds, "train", real)
    first = written(tmp_path / "runs")
    assert cli("train", recipe, "--output", tmp_path / "runs").code == 0
    again = written(tmp_path / "runs")
    assert kept.items() <= first.items() <= again.items()
    assert len(again) == FOLDS
    one, other = json.loads(expected), json.loads((tmp_path / "runs" / "mail-folds.json").read_text())
    assert one["test"] == pytest.approx(other["test"])


def test_one_fold_alone_has_the_name_that_all_have(recipe, tmp_path, cli):
    values = yaml.safe_load(recipe.read_text())
    del values["name"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values | {"output": str(tmp_path / "runs")}))
    options = ("--training.max_steps", 1)
    assert cli("train", tmp_path / "recipe.yaml", "--data.fold", 1, *options).code == 0
    before = written(tmp_path / "runs")
    assert list(before) == ["mail-lora-seed0-fold1"]
    assert cli("train", tmp_path / "recipe.yaml", *options).code == 0
    assert before.items() <= written(tmp_path / "runs").items()
    assert (tmp_path / "runs" / "mail-lora-seed0-folds.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data.folds", 1], "data.folds: got 1, expected at least 2"),
        (["--data.fold", 3], "fold: got 3, expected 0 to 2 with 3 folds"),
        (["--data.folds", 61], "data.folds: 61 needs 61 of each; at most 60 can be asked for"),
        (["--data.test_fraction", 0.2], "test_fraction and folds exclude each other"),
    ],
)
def test_bad_folds_are_one_line(recipe, tmp_path, refused, words, said):
    assert said in refused("train", recipe, "--output", tmp_path, *words)
    assert not list(tmp_path.rglob("run.json"))


def test_a_file_in_the_place_of_the_result_is_left_alone(recipe, tmp_path, refused):
    (tmp_path / "mail-folds.json").write_text("mine")
    assert "was not written by this command" in refused("train", recipe, "--output", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mail-folds.json"]
