"""Runs that are killed or interrupted, and go on. In processes of their own: only those can be killed."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from foretoken_cli import main

SLOW = {"epochs": 12, "early_stopping_patience": 12, "learning_rate": 0.01}
TIMINGS = ("runtime", "samples_per_second", "steps_per_second")


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert main(["train", str(tiny.recipe(folder / "r.yaml", training=SLOW))]) == 0
    return folder / "runs" / "run"


def start(recipe):
    command = [sys.executable, "-m", "foretoken", "train", str(recipe)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_checkpoint(process, run, number):
    wanted = run / "checkpoints" / f"checkpoint-{number}" / "trainer_state.json"
    deadline = time.monotonic() + 120
    while not wanted.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def without_timings(entries):
    return [
        {k: v for k, v in entry.items() if k != "seconds"}
        | {"validation": {k: v for k, v in entry["validation"].items() if k not in TIMINGS}}
        for entry in entries
    ]


def assert_same_outcome(run, other):
    ours, theirs = (json.loads((folder / "run.json").read_text()) for folder in (run, other))
    assert ours["status"] == "finished"
    assert without_timings(ours["epochs"]) == without_timings(theirs["epochs"])
    seconds = [entry["seconds"] for entry in ours["epochs"]]  # those before the kill included
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] < seconds[-1] <= ours["timings"]["train_seconds"]
    for key in ("test", "validation", "best", "steps"):
        assert ours[key] == theirs[key]
    tables = [pq.read_table(folder / "predictions.parquet") for folder in (run, other)]
    assert tables[0].equals(tables[1])
    assert not (run / "checkpoints").exists()


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(tiny, tmp_path, uninterrupted, cli):
    recipe, run = tiny.recipe(tmp_path / "r.yaml", training=SLOW), tmp_path / "runs" / "run"
    process = start(recipe)
    wait_for_checkpoint(process, run, 36)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert json.loads((run / "run.json").read_text())["status"] == "running"
    half_written = run / "checkpoints" / "checkpoint-9999"
    half_written.mkdir()
    (half_written / "adapter_model.safetensors").write_bytes(b"\x10")
    result = cli("train", recipe)
    assert result.code == 0
    assert "going on from checkpoint-" in result.err
    assert_same_outcome(run, uninterrupted)


@pytest.mark.slow
def test_ctrl_c_says_so_in_one_line_and_the_run_goes_on_later(tiny, tmp_path, uninterrupted, cli):
    recipe, run = tiny.recipe(tmp_path / "r.yaml", training=SLOW), tmp_path / "runs" / "run"
    process = start(recipe)
    wait_for_checkpoint(process, run, 12)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.rstrip().endswith("foretoken: error: interrupted")
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert cli("train", recipe).code == 0
    assert_same_outcome(run, uninterrupted)


def test_a_run_killed_after_its_last_step_is_only_measured(tiny, tmp_path, cli, monkeypatch):
    """Early stopping ended the training; the kill came while the adapter was being saved."""
    options = {"epochs": 9, "early_stopping_patience": 1, "learning_rate": 1e-9}
    recipe, run = tiny.recipe(tmp_path / "r.yaml", training=options), tmp_path / "runs" / "run"
    with monkeypatch.context() as patched:
        patched.setattr("foretoken.training.run.train.save_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli("train", recipe).code == 130
    shutil.rmtree(run / "adapter", ignore_errors=True)
    result = cli("train", recipe)
    assert result.code == 0
    assert "training had ended" in result.err
    values = json.loads((run / "run.json").read_text())
    assert values["steps"] == 24
    assert [entry["step"] for entry in values["epochs"]] == [12, 24]
    assert (run / "adapter" / "adapter_model.safetensors").exists()
