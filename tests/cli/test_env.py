"""`foretoken env`, and `precision: auto` with measurements that are given."""

import json

import pytest
import torch

from foretoken import __version__
from foretoken.machine.products import library
from foretoken.training.recipe.recipe import load_recipe
from foretoken.training.recipe.resolve import as_begun


@pytest.fixture
def measured(monkeypatch):
    def set_to(**seconds):
        monkeypatch.setattr("foretoken.machine.precision.product_seconds", lambda shape, device: seconds)

    return set_to


def test_env_prints_what_there_is(cli, monkeypatch):
    monkeypatch.setenv("FORETOKEN_API_KEY", "geheim")
    result = cli("env")
    values = json.loads(result.out)
    assert values["versions"]["foretoken"] == __version__
    assert values["processor"]["threads"] == torch.get_num_threads()
    assert values["chosen"]["float32_library"] == library()
    assert values["chosen"]["precision_auto"] == ("bf16" if values["chosen"]["bf16_over_fp32"] >= 1.25 else "fp32")
    assert values["variables"]["FORETOKEN_API_KEY"] == "(set)"
    assert "geheim" not in result.out


@pytest.mark.parametrize(("seconds", "chosen"), [((1.0, 0.1), "bf16"), ((1.0, 3.0), "fp32")])
def test_a_run_records_what_auto_came_to(measured, seconds, chosen, tiny, tmp_path, cli, record):
    measured(fp32=seconds[0], bf16=seconds[1])
    recipe = tiny.recipe(tmp_path / "r.yaml", training={"epochs": 1, "precision": "auto"})
    result = cli("train", recipe)
    assert result.code == 0, result.err
    assert f"precision: {chosen} (a product of 128 x " in result.err
    values = record(tmp_path / "runs" / "run")
    assert values["recipe"]["training"]["precision"] == chosen
    assert "training.precision" in values["recipe"]["auto"]
    assert values["precision"]["seconds"] == {"fp32": seconds[0], "bf16": seconds[1]}
    measured(fp32=seconds[1], bf16=seconds[0])  # another machine
    assert cli("train", recipe).code == 0  # finished, not repeated
    assert record(tmp_path / "runs" / "run") == values
    assert as_begun(load_recipe(recipe), values["recipe"]).training.precision == chosen


def test_predict_takes_what_is_faster(measured, finished, tiny, cli):
    measured(fp32=1.0, bf16=0.1)
    assert "computing in bfloat16" in cli("predict", finished, "hello", "--precision", "auto").err
    measured(fp32=1.0, bf16=1.0)
    result = cli("predict", finished, "hello", "--precision", "auto")
    assert "computing in float32" in result.err
    assert result.out == cli("predict", finished, "hello").out


def test_several_processes_may_not_choose_each_for_itself(monkeypatch, tiny, tmp_path, cli):
    monkeypatch.setattr("foretoken.training.run.train.num_processes", lambda: 2)
    result = cli("train", tiny.recipe(tmp_path / "r.yaml", training={"precision": "auto"}))
    assert result.code == 2
    assert "training.precision: auto is measured by one process, and 2 may not agree; say fp32 or bf16" in result.err
