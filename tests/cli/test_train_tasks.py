"""`foretoken train` of several tasks on one model: one run each, as if each had been trained alone."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.recipe.tasks import build_tasks
from foretoken.training.run import train as run_module
from foretoken.training.run.tasks import train_tasks
from foretoken_cli import main

from support.tiny_run import documents, save_tiny_model, write_csv

NAMES = {"spam": "lora", "ham": "prefix-tuning", "length": "prefix-propagation"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What a recipe of three tasks says; the model has no dropout, so that runs can be compared."""
    root = tmp_path_factory.mktemp("tasks")
    model = save_tiny_model(root / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps(config | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    )
    mail = write_csv(root / "mail.csv", documents(120))
    more = write_csv(root / "more.csv", documents(60, seed=3))
    numbers = write_csv(root / "numbers.csv", [(text, len(text.split()) / 10) for text, _ in documents(90, seed=5)])
    training = {"num_threads": 1, "epochs": 2, "learning_rate": 0.02, "head_learning_rate": None}
    training |= {"optim": "sgd", "batch_size": 16}
    return {
        "model": str(model),
        "output": str(root / "runs"),
        "name": "all",
        "method": {"name": "lora", "r": 4},
        "training": training,
        "tasks": {
            "spam": {"data": {"path": str(mail)}, "training": {"gradient_accumulation_steps": 2, "batch_size": 8}},
            "ham": {
                "data": {"path": str(more)},
                "method": {"name": "prefix-tuning", "prefix_dropout": 0.0},
                "head": {"pool": "mean"},
                "training": {"epochs": 3, "seed": 3},
                "calibration": "temperature",
            },
            "length": {
                "data": {"path": str(numbers), "problem": "regression"},
                "method": {"name": "prefix-propagation", "prefix_dropout": 0.0},
            },
        },
    }


@pytest.fixture(scope="module")
def recipe(asked, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "all.yaml"
    path.write_text(yaml.safe_dump(asked, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def done(recipe, asked):
    """The folder of the runs."""
    assert main(["train", str(recipe)]) == 0
    return recipe.parent.parent / asked["output"]


def tensors(folder):
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def test_each_run_is_what_its_task_alone_would_have_been(done, asked, tmp_path, record):
    for task in NAMES:
        own = build_tasks(asked | {"output": str(tmp_path)}).recipes[task]
        alone = run_module.train(own)
        found = record(done / f"all-{task}")
        ours, theirs = tensors(done / f"all-{task}"), tensors(tmp_path / f"all-{task}")
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5)
        assert found["steps"] == alone["steps"]
        assert found["test"] == pytest.approx(alone["test"], abs=1e-4)
        assert [entry["step"] for entry in found["epochs"]] == [entry["step"] for entry in alone["epochs"]]


def test_what_runs_agree_on_was_trained(done):
    for task in NAMES:
        biases = {name: tensor for name, tensor in tensors(done / f"all-{task}").items() if name.endswith("bias")}
        assert max(tensor.abs().max() for tensor in biases.values()) > 1e-4  # they begin as zeros


def test_the_result_names_every_run(done, record):
    found = json.loads((done / "all-tasks.json").read_text())
    assert found["status"] == "finished"
    assert found["runs"] == {task: f"all-{task}" for task in NAMES}
    for task in NAMES:
        own = record(done / f"all-{task}")
        assert own["status"] == "finished"
        assert found["tasks"][task]["test"] == own["test"]
    assert found["tasks"]["length"]["problem"] == "regression"


def test_each_run_is_evaluated_and_predicts_alone(done, asked, cli):
    result = cli("predict", done / "all-ham", "word1 prize word2")
    assert result.code == 0
    assert json.loads(result.out)["label"] in ("ham", "spam")
    file = Path(asked["tasks"]["length"]["data"]["path"])
    assert cli("evaluate", done / "all-length", file).code == 0


def test_a_finished_recipe_repeats_nothing_and_prints_a_row_for_each(done, recipe, cli):
    before = {path: path.stat().st_mtime_ns for path in done.glob("all-*/run.json")}
    result = cli("train", recipe)
    assert result.code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    rows = result.out.splitlines()[1:4]
    assert [row.split()[:2] for row in rows] == [[f"{task}:", method] for task, method in NAMES.items()]


def test_a_task_that_is_added_is_trained_beside_the_finished_ones(done, asked, record):
    before = (done / "all-spam" / "run.json").stat().st_mtime_ns
    more = {"again": asked["tasks"]["spam"] | {"method": "head-only"}}
    train_tasks(build_tasks(asked | {"tasks": asked["tasks"] | more}))
    assert record(done / "all-again")["status"] == "finished"
    assert (done / "all-spam" / "run.json").stat().st_mtime_ns == before


def test_killed_runs_go_on_and_end_as_those_that_were_not(done, asked, tmp_path, record, monkeypatch):
    """Interrupted in the middle of the second epoch, each run goes on from its own checkpoint."""
    tasks = build_tasks(asked | {"output": str(tmp_path)})
    from foretoken.training.trainer import joint

    real, steps = joint.step, []

    def interrupted(*given):
        steps.append(given)
        if len(steps) == 5:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(joint, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_tasks(tasks)
    assert {record(tmp_path / f"all-{task}")["status"] for task in NAMES} == {"interrupted"}
    monkeypatch.setattr(joint, "step", real)
    train_tasks(tasks)
    for task in NAMES:
        assert record(tmp_path / f"all-{task}")["status"] == "finished"
        ours, theirs = tensors(tmp_path / f"all-{task}"), tensors(done / f"all-{task}")
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-5)


def test_a_task_that_fails_ends_all_in_one_line_and_leaves_no_run(asked, tmp_path, cli):
    broken = tmp_path / "broken.csv"
    broken.write_text("text,label\nhello,1\n")
    tasks = asked["tasks"] | {"broken": {"data": {"path": str(broken)}}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(asked | {"tasks": tasks, "output": str(tmp_path / "runs")}))
    result = cli("train", path)
    assert result.code == 2
    said = [line for line in result.err.splitlines() if "error:" in line]
    assert len(said) == 1
    assert said[0].startswith("foretoken: error: broken: ")
    assert not list((tmp_path / "runs").glob("*/run.json"))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"tasks": {}}, "tasks: got {}, expected a group of tasks by name"),
        ({"tasks": {"a b": {}}}, "tasks: got the name 'a b'; expected up to 64 letters"),
        ({"tasks": {"a": 3}}, "tasks.a: got 3, expected a group of keys"),
        ({"tasks": {"a": {}}}, "tasks.a.data: is required"),
        ({"tasks": {"a": {"data": {"path": "x.csv"}, "model": "minilm"}}}, "tasks.a.model: all tasks share it"),
        (
            {"tasks": {"a": {"data": {"path": "x.csv"}, "methd": "lora"}}},
            "tasks.a.methd: no such key (did you mean 'method'?)",
        ),
        ({"tasks": {"a": {"data": {"path": "x.csv"}, "method": "lroa"}}}, "tasks.a.method.name: "),
        (
            {"tasks": {"a": {"data": {"path": "x.csv"}, "training": {"precision": "bf16"}}}},
            "tasks.a.training.precision: is of the pass that all tasks share",
        ),
        ({"training": {"gradient_checkpointing": True}}, "training.gradient_checkpointing: is not for several tasks"),
        ({"training": {"precision": "auto"}}, "training.precision: auto is measured for each run"),
        ({"training": {"epochs": 0}}, "training.epochs: got 0, expected at least 1"),
        ({"tasks": {"a": {"data": {"path": "x.csv", "folds": 3}}}}, "tasks.a.data.folds: with tasks name one fold"),
        ({"method": "full", "tasks": {"a": {"data": {"path": "x.csv"}}}}, "tasks.a.method: full has no adapter"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_key(asked, tmp_path, cli, change, line):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(asked | {"output": str(tmp_path / "runs")} | change))
    result = cli("train", path)
    assert result.code == 2
    assert line in result.err
    assert "Traceback" not in result.err


def test_the_flags_lay_over_tasks_too(asked):
    from foretoken.training.recipe.reading import apply_overrides

    values = apply_overrides(asked, {"training.epochs": 7, "tasks.spam.method.r": 8, "tasks.length.method": "lora"})
    found = build_tasks(values).recipes
    assert found["spam"].training.epochs == found["length"].training.epochs == 7
    assert found["ham"].training.epochs == 3
    assert found["length"].method == {"name": "lora"}


def test_a_task_is_the_recipe_that_could_be_written_for_it(asked):
    own = {key: value for key, value in asked.items() if key != "tasks"}
    own |= asked["tasks"]["ham"] | {"training": asked["training"] | {"epochs": 3, "seed": 3}, "name": "all-ham"}
    assert build_tasks(asked).recipes["ham"] == build_recipe(own)
