"""`foretoken sweep` as a user runs it: tiny runs, killed workers, a second command."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from foretoken_cli import main


@pytest.fixture(scope="session")
def sweep_file(tiny):
    """Write a sweep of tiny runs into a folder."""

    def write(folder, **changes):
        values = {
            "recipe": {
                "model": str(tiny.model),
                "data": {"path": str(tiny.data)},
                "training": {"num_threads": 1, "epochs": 1, "batch_size": 32},
            },
            "output": str(folder / "sweeps"),
            "compare": {"method": [{"name": "lora", "r": 2}, "prefix-tuning"]},
            "search": {"space": {"training.learning_rate": [0.03, 0.001]}},
            "seeds": [0, 1],
            "seeds_for": "selected",
        }
        path = folder / "sweep.yaml"
        path.write_text(yaml.safe_dump(values | changes, sort_keys=False))
        return path

    return write


@pytest.fixture(scope="module")
def finished(sweep_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    path = sweep_file(folder)
    assert main(["sweep", str(path)]) == 0
    return SimpleNamespace(path=path, folder=folder / "sweeps" / "sweep")


def start(path, log, *words):
    """Start the command line in a process of its own; what it says goes to a file."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "foretoken", "sweep", str(path), *words]
    with log.open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)


def wait_for(condition, *processes):
    deadline = time.monotonic() + 120
    while not condition():
        assert all(process.poll() is None for process in processes), "a process ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def trained(*logs):
    return [name for log in logs for name in re.findall(r"^foretoken: training: (\S+)$", log.read_text(), re.MULTILINE)]


def saved(folder):
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("run.json")}


def record(folder):
    return json.loads((folder / "sweep.json").read_text())


def test_a_search_selects_by_validation_and_tests_the_selected_alone(finished):
    found = record(finished.folder)
    assert found["status"] == "finished"
    assert found["counts"] == {"trained": 2, "measured": 4}
    for variant in found["contestants"]:
        chosen = next(item for item in variant["candidates"] if item["selected"])
        assert chosen["score"] == max(item["score"] for item in variant["candidates"])
        assert list(variant["test"]["f1_macro"]["seeds"]) == ["0", "1"]
        for candidate in variant["candidates"]:
            for name in candidate["runs"]:
                run = json.loads((finished.folder / name / "run.json").read_text())
                assert run["status"] == "finished"
                assert ("test" in run) is candidate["selected"]
                assert run["recipe"]["training"]["learning_rate"] == candidate["params"]["training.learning_rate"]


def test_a_finished_sweep_prints_its_table_and_repeats_nothing(finished, cli):
    before = saved(finished.folder)
    result = cli("sweep", finished.path)
    assert result.code == 0
    assert saved(finished.folder) == before
    header, lora, prefix, *baselines = result.out.split("\n\n")[0].splitlines()
    assert header.split("  ")[0] == "variant"
    assert (lora.split()[0], prefix.split()[0]) == ("lora", "prefix-tuning")
    assert "±" in lora
    assert [line.split("  ")[0] for line in baselines] == ["majority (baseline)", "tf-idf (baseline)"]
    files = [path.parent for path in finished.folder.glob("lora/*/baselines.parquet")]
    (measured,) = files  # the selected candidate of the first variant, its first seed
    values = json.loads((measured / "run.json").read_text())
    assert f"{values['baselines']['tf-idf']['test']['f1_macro']:.4f}" in baselines[1]
    assert not list(finished.folder.glob("prefix-tuning/*/baselines.parquet"))
    assert "6 of 6 runs done" in result.err


def test_a_dry_run_counts_and_touches_nothing(sweep_file, tmp_path, cli):
    result = cli("sweep", sweep_file(tmp_path), "--dry-run")
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()[1:3]] == [
        ["lora", "2", "2", "2", "1"],
        ["prefix-tuning", "2", "2", "2", "1"],
    ]
    assert "6 runs: 4 of the search, 2 of the candidates it selects" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


def test_a_failed_run_is_listed_and_the_others_go_on(sweep_file, tmp_path, cli):
    space = {"training.attention_engine": ["sdpa"], "model": [str(tmp_path / "nowhere")]}
    rule = {"when": {"method.name": "prefix-tuning"}, "space": space}
    path = sweep_file(tmp_path, per=[rule], search={"space": {}}, seeds=[0])
    result = cli("sweep", path)
    assert result.code == 2
    assert "1 runs failed; --retry-failed runs them again" in result.err
    assert "nowhere" in result.err
    lora, prefix = record(tmp_path / "sweeps" / "sweep")["contestants"]
    assert (lora["counts"], prefix["counts"]) == ({"measured": 1}, {"failed": 1})
    assert cli("sweep", path).code == 2  # it is not tried again unless one asks


def test_errors_of_the_file_and_the_flags_are_one_message(sweep_file, tmp_path, refused):
    said = refused("sweep", sweep_file(tmp_path, search={"space": {"training.epoch": [1]}}))
    assert said.splitlines()[1:] == ["  search.space: training.epoch: no such key (did you mean 'epochs'?)"]
    path = sweep_file(tmp_path)
    assert "--workers" in refused("sweep", path, "--workers", "0")
    said = refused("sweep", path, "--storage", "postgresql://u:s3cret@h/d")
    assert "  recipe: storage: left foretoken: leave it out; a sweep's state is in the folders of its runs" in said


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_every_process_and_says_how_to_go_on(workers, sweep_file, tmp_path):
    path = sweep_file(tmp_path, search={"space": {}}, seeds=[0])
    folder, log = tmp_path / "sweeps" / "sweep", tmp_path / "log"
    process = start(path, log, "--workers", workers, "--training.epochs", "2000")
    wait_for(lambda: list(folder.glob("lora/*/checkpoints/*/trainer_state.json")), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "the same command goes on" in log.read_text()
    assert record(folder)["counts"] == {"waiting": 2}
    assert not list(folder.glob("*/*/.foretoken-*"))  # nobody holds a run


@pytest.mark.slow
def test_processes_and_a_second_command_share_the_runs_and_do_that_of_one_that_is_killed(sweep_file, tmp_path):
    path = sweep_file(tmp_path, seeds_for="all", search={"space": {"training.epochs": [20, 21]}})
    folder, logs = tmp_path / "sweeps" / "sweep", [tmp_path / "log", tmp_path / "second"]
    first = start(path, logs[0], "--workers", "2")
    wait_for(lambda: list(folder.glob("*/*/checkpoints/checkpoint-[1-9]*/checksums.json")), first)
    second = start(path, logs[1])
    run = next(folder.glob("*/*/checkpoints/checkpoint-[1-9]*/checksums.json")).parents[2]
    os.kill(json.loads((run / ".foretoken-holder.json").read_text())["process"], signal.SIGKILL)
    assert (first.wait(timeout=300), second.wait(timeout=300)) == (0, 0)
    assert record(folder)["counts"] == {"trained": 4, "measured": 4}
    assert f"the process of {run.parent.name}/{run.name} died at step" in logs[0].read_text()
    said = [file.read_text() for file in (logs[1], *folder.glob("workers/*.log"))]
    assert sum(text.count("going on from checkpoint-") for text in said) == 1
    assert sum(text.count("peak memory") for text in said) == 8  # runs that were trained to their end
