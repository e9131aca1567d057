"""Runs lose nothing and go on with nothing else than they were begun with."""

import csv
import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from foretoken.errors import RecipeError
from foretoken.inference.evaluate import measure_test
from foretoken.training.recipe.recipe import load_recipe
from foretoken.training.run.train import train as run_recipe

from support.faults.crashes import Case, left
from support.tiny_run import documents, write_csv

STEPS = {"max_steps": 6, "eval_every": 2}


def by_default(count, *cases):
    """Leave all cases but the first few to the slow suite."""
    return [*cases[:count], *(pytest.param(case, marks=pytest.mark.slow) for case in cases[count:])]


@pytest.fixture(scope="module")
def train(crashes, tiny_files):
    """The case of a run with three evaluations, and what it leaves when nothing goes wrong."""

    def start(folder, **changes):
        shutil.copy(tiny_files.data, folder / "mail.csv")
        tiny_files.recipe(folder, data={"path": "mail.csv"}, training=STEPS, **changes)

    case = Case("run", ("train", "recipe.yaml"), start)
    return SimpleNamespace(case=case, start=start, undisturbed=crashes.undisturbed(case))


@pytest.fixture(scope="module")
def killed_runs(crashes, train, tmp_path_factory):
    """Run and kill before the first call of a kind on a path that ends so; the same kill is done once."""

    @cache
    def kill(end_of_path, call, **changes):
        folder = tmp_path_factory.mktemp("killed")
        train.start(folder, **changes)
        calls = [line.split(" ", 2) for line in train.undisturbed.calls]
        at = next(n for n, (_, kind, path) in enumerate(calls) if call in kind and path.endswith(end_of_path))
        ended = crashes.forked(*train.case.words, cwd=folder, fault=(str(folder), at, "kill-before", ""))
        assert ended.code == -signal.SIGKILL, ended.err
        return folder

    return kill


@pytest.fixture
def killed(killed_runs, tmp_path):
    """A copy of what a killed run left; return the folder that it is in."""

    def copied(end_of_path, *, call="", **changes):
        return shutil.copytree(killed_runs(end_of_path, call, **changes), tmp_path, symlinks=True, dirs_exist_ok=True)

    return copied


@pytest.fixture
def go_on(crashes, tmp_path):
    """Give the command again; return how it ended."""

    def run(*words, cwd=tmp_path):
        return crashes.forked("train", "recipe.yaml", *words, cwd=cwd)

    return run


@pytest.fixture(scope="module")
def finished_run(crashes, train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    train.start(folder)
    assert crashes.forked("train", "recipe.yaml", cwd=folder).code == 0
    return folder


@pytest.fixture
def finished(finished_run, tmp_path):
    """A copy of a finished run, and its files."""
    shutil.copytree(finished_run, tmp_path, symlinks=True, dirs_exist_ok=True)
    return SimpleNamespace(folder=tmp_path / "runs" / "run", left=left(tmp_path / "runs"))


def of_run(undisturbed):
    """What the undisturbed run leaves in the folder of the runs."""
    return {name[5:]: value for name, value in undisturbed.left.items() if name.startswith("runs/")}


@pytest.mark.parametrize("name", by_default(2, "../x", "x\x00y", "..", "/tmp/x", "", "nul"))
def test_a_run_never_leaves_the_folder_of_the_runs(name, forked, tiny_files, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_files.values(name=name)))
    before = left(tmp_path)
    ended = forked("train", "recipe.yaml", "--restart", cwd=tmp_path)
    assert ended.code == 2
    assert "name: got" in ended.err
    assert left(tmp_path) == before


def below(files, name):
    """Return what is left in one of the runs' folders."""
    return {path.removeprefix(f"{name}/"): value for path, value in files.items() if path.startswith(f"{name}/")}


def test_a_restart_renames_the_earlier_run_with_all_that_is_in_it(finished, tmp_path, go_on):
    for path in ("notes.txt", "adapter/plot.svg", "more/a.txt"):
        (finished.folder / path).parent.mkdir(exist_ok=True)
        (finished.folder / path).write_text("mine")
    before = left(tmp_path / "runs")
    ended = go_on("--restart", "--training.seed", "5")
    assert ended.code == 0
    assert "the earlier run is now runs/run.1" in ended.err
    found = left(tmp_path / "runs")
    assert below(found, "run.1") == below(before, "run")
    assert below(found, "run").keys() == below(finished.left, "run").keys()
    assert json.loads((finished.folder / "run.json").read_text())["seed"] == 5
    assert go_on("--restart", "--data.path", "nowhere.csv").code == 2
    assert left(tmp_path / "runs") == found  # the new run does not begin


@pytest.mark.slow
def test_a_restart_killed_at_any_moment_loses_nothing(finished, tiny_files, tmp_path, crashes, train):
    tiny_files.recipe(tmp_path, data={"path": "mail.csv"}, training=STEPS | {"seed": 1})
    words, log = ("train", "recipe.yaml", "--restart"), tmp_path / "calls"
    trial = shutil.copytree(tmp_path, tmp_path / "trial")
    assert crashes.forked(*words, cwd=trial, fault=(str(trial), -1, "count", str(log))).code == 0
    expected = below(left(trial / "runs"), "run")
    calls = log.read_text().splitlines()
    renamed = next(n for n, line in enumerate(calls) if line.split()[1] == "rename" and line.endswith("/runs/run.1"))
    for mode, at in [("kill-before", renamed), ("kill-after", renamed), ("kill-before", len(calls) // 2)]:
        folder = tmp_path / f"{mode}-{at}"
        shutil.copytree(tmp_path / "runs", folder / "runs")
        for name in ("recipe.yaml", "mail.csv"):
            shutil.copy(tmp_path / name, folder / name)
        ended = crashes.forked(*words, cwd=folder, fault=(str(folder), at, mode, ""))
        assert ended.code == -signal.SIGKILL
        kept = left(folder / "runs")
        old = "run" if (mode, at) == ("kill-before", renamed) else "run.1"
        assert below(finished.left, "run").items() <= below(kept, old).items()
        assert crashes.forked(*words, cwd=folder).code == 0
        assert below(left(folder / "runs"), "run") == expected


@pytest.mark.parametrize("words", [(), ("--restart",)])
def test_a_folder_that_is_no_run_is_never_touched(words, train, tmp_path, go_on):
    train.start(tmp_path)
    (tmp_path / "runs" / "run" / "adapter").mkdir(parents=True)
    (tmp_path / "runs" / "run" / "adapter" / "adapter_model.safetensors").write_text("mine")
    before = left(tmp_path)
    ended = go_on(*words)
    assert ended.error == ["runs/run exists and holds no run; choose another `name` or `output`"]
    assert left(tmp_path) == before


@pytest.mark.parametrize("path", by_default(1, "/runs/run/predictions.parquet", "/runs/run/adapter"))
def test_killed_in_the_final_save_and_moved_the_best_weights_are_saved(path, killed, train, crashes, tmp_path):
    """Given from another folder as well, with the paths as they are from there."""
    moved = killed(path).rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    (moved / "deeper").mkdir()
    ended = crashes.forked("train", "../recipe.yaml", "--output", "../runs", cwd=moved / "deeper")
    assert ended.code == 2  # the data are not there
    ended = crashes.forked("train", "recipe.yaml", cwd=moved)
    assert ended.code == 0, ended.err
    assert "training had ended at checkpoint-6; measuring its best checkpoint" in ended.err
    assert left(moved / "runs") == of_run(train.undisturbed)


def test_what_a_user_put_beside_a_save_that_was_killed_stays(killed, go_on, tmp_path):
    killed("/runs/run/predictions.parquet")
    plot = tmp_path / "runs/run/adapter/plots/one.svg"
    plot.parent.mkdir()
    plot.write_text("mine")
    assert go_on().code == 0
    assert plot.read_text() == "mine"


def test_without_its_best_checkpoint_a_run_stops_and_says_so(killed, go_on, tmp_path):
    killed("/runs/run/adapter")
    checkpoints = tmp_path / "runs/run/checkpoints"
    newest = max(checkpoints.iterdir(), key=lambda path: int(path.name.partition("-")[2]))
    best = f"checkpoint-{json.loads((newest / 'trainer_state.json').read_text())['best_global_step']}"
    shutil.rmtree(checkpoints / best)
    ended = go_on()
    assert ended.code == 2
    assert ended.error[0].startswith(f"runs/run/checkpoints/{best}, which holds the best weights")
    assert not (tmp_path / "runs/run/adapter").exists()
    assert go_on("--restart").code == 0


def edited(path, edit):
    rows = list(csv.reader(path.read_text().splitlines()))
    write_csv(path, edit(rows[1:]), header=rows[0])


CHANGES = {
    "grew": lambda rows: [*rows, *documents(2, seed=9)],
    "relabelled": lambda rows: [[rows[0][0], "spam"], [rows[1][0], "ham"], *rows[2:]],
}


@pytest.mark.parametrize("change", by_default(1, *CHANGES))
def test_other_data_than_before_the_kill_are_said(change, killed, go_on, tmp_path):
    killed("/checkpoints/checkpoint-4")
    edited(tmp_path / "mail.csv", CHANGES[change])
    ended = go_on()
    assert ended.code == 2
    assert "--accept-changed" in ended.error[0]
    assert any(line.strip().startswith("data.train: 32 rows") for line in ended.error)
    ended = go_on("--accept-changed")
    assert ended.code == 0, ended.err
    assert "going on though it changed: data.train: 32 rows" in ended.err


def test_another_model_or_version_than_before_the_kill_is_said(killed, go_on, tmp_path, tiny_files):
    model = shutil.copytree(tiny_files.model, tmp_path / "model")
    killed("/checkpoints/checkpoint-4", model=str(model))
    weights = model / "model.safetensors"
    values = load_file(weights)
    name = next(name for name in values if name.endswith("word_embeddings.weight"))
    save_file(values | {name: values[name] + torch.full_like(values[name], 1e-3)}, weights, metadata={"format": "pt"})
    record = tmp_path / "runs/run/run.json"
    text = json.loads(record.read_text())
    text["fingerprint"]["torch"] = "1.0"
    record.write_text(json.dumps(text))
    ended = go_on()
    assert ended.code == 2
    said = [line.strip().partition(":")[0] for line in ended.error[1:]]
    assert said == ["model.embeddings", "torch"]
    assert go_on("--accept-changed").code == 0


def test_another_recipe_in_the_same_folder_is_refused(killed, go_on, tmp_path):
    killed("/checkpoints/checkpoint-4")
    before = {name: value for name, value in left(tmp_path).items() if ".foretoken-" not in name}
    ended = go_on("--training.learning_rate", "0.5", "--training.num_threads", "2")
    assert ended.code == 2
    assert "holds a run of another recipe" in ended.error[0]
    assert ended.error[1:] == ["  training.learning_rate: 0.03 in the folder, 0.5 now"]
    assert left(tmp_path) == before


def test_another_test_split_is_not_measured(train, tmp_path, monkeypatch):
    """A sweep measures the test split of a run long after it was trained."""
    monkeypatch.chdir(tmp_path)
    train.start(tmp_path)
    write_csv(tmp_path / "test.csv", documents(6, seed=3))
    splits = ["--data", '{"train": "mail.csv", "test": "test.csv"}']
    recipe = load_recipe("recipe.yaml", splits)
    run_recipe(recipe, measure_test=False)
    write_csv(tmp_path / "test.csv", documents(6, seed=4))
    with pytest.raises(RecipeError, match=r"(?s)begun with something else.*data\.test: 6 rows"):
        measure_test(recipe)
    assert "test" in measure_test(recipe, accept_changed=True)


def test_killed_before_its_record_a_run_begins_anew(killed, go_on, tmp_path, train):
    killed("/runs/run/run.json")
    assert [path.name for path in (tmp_path / "runs/run").iterdir()]
    assert not (tmp_path / "runs/run/run.json").exists()
    assert go_on().code == 0
    assert left(tmp_path / "runs") == of_run(train.undisturbed)


def test_killed_after_it_was_finished_a_run_is_tidied_up(killed, go_on, tmp_path, train):
    killed("/checkpoint-4/training_args.bin", call="unlink")
    assert (tmp_path / "runs/run/checkpoints").is_dir()
    ended = go_on()
    assert ended.code == 0
    assert "is finished and is not repeated" in ended.err
    assert left(tmp_path / "runs") == of_run(train.undisturbed)


def test_two_processes_do_not_train_one_run(train, forked, tmp_path, go_on):
    train.start(tmp_path)
    more_steps = ("--training.max_steps", "100000", "--training.eval_every", "1000")
    holder = tmp_path / "runs/run/.foretoken-holder.json"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(forked, "train", "recipe.yaml", *more_steps, cwd=tmp_path, seconds=120)
        while not holder.exists():
            assert not first.done(), first.result().err
            time.sleep(0.05)
        process = json.loads(holder.read_text())["process"]
        try:
            for words in ((), ("--restart",)):
                ended = go_on(*more_steps, *words)
                assert ended.code == 2
                assert f"runs/run: process {process} on {os.uname().nodename} (since " in ended.error[0]
            assert not first.done()
        finally:
            os.kill(process, signal.SIGKILL)
    assert first.result().code == -signal.SIGKILL
    assert go_on().code in (0, 2)  # another recipe, where it came to a checkpoint; held by nobody in any case


HOSTILE = ['{"status": "finished", "recipe": {}}', "[" * 100_000, "", "[]", "{}"]


@pytest.mark.parametrize("text", by_default(2, *HOSTILE), ids=range(len(HOSTILE)))
def test_a_damaged_record_is_said_and_a_restart_helps(text, finished, go_on):
    (finished.folder / "run.json").write_text(text)
    ended = go_on()
    assert ended.code == 2
    assert len(ended.error) == 1
    assert ended.error[0].startswith("runs/run/run.json is damaged (")
    assert ended.error[0].endswith("or begin anew with --restart")
    assert go_on("--restart", "--training.max_steps", "1", "--training.eval_every", "1").code == 0


@pytest.mark.parametrize("name", by_default(1, "adapter_model.safetensors", "optimizer.pt", "checksums.json"))
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(name, killed, go_on, tmp_path, train):
    killed("/runs/run/adapter")
    file = tmp_path / "runs/run/checkpoints/checkpoint-6" / name
    file.write_bytes(file.read_bytes()[:-7] + b"damaged")
    ended = go_on()
    assert ended.code == 0, ended.err
    assert "checkpoint-6 is cut short or damaged and is passed over" in ended.err
    assert "going on from checkpoint-4" in ended.err
    assert left(tmp_path / "runs") == of_run(train.undisturbed)


def test_a_run_of_an_earlier_version_goes_on(killed, go_on, tmp_path, train):
    """Without checksums, fingerprint and list of files, and with a slash in its name, as sweeps had it."""
    killed("/checkpoints/checkpoint-6/optimizer.pt")
    for file in (tmp_path / "runs/run/checkpoints").rglob("checksums.json"):
        file.unlink()
    record = tmp_path / "runs/run/run.json"
    text = json.loads(record.read_text())
    text["recipe"] |= {"output": ".", "name": "runs/run"}
    record.write_text(json.dumps({key: value for key, value in text.items() if key not in ("fingerprint", "files")}))
    ended = go_on()
    assert ended.code == 0, ended.err
    assert "going on from checkpoint-4" in ended.err
    assert left(tmp_path / "runs") == of_run(train.undisturbed)
