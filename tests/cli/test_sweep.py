"""`foretoken sweep` as a user runs it: tiny runs, killed workers, SQLite and a PostgreSQL server that goes away."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import yaml

from foretoken_cli import main

from support.postgres import binaries, postgres


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
    header, lora, prefix, *_ = result.out.splitlines()
    assert header.split("  ")[0] == "variant"
    assert (lora.split()[0], prefix.split()[0]) == ("lora", "prefix-tuning")
    assert "±" in lora
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


def test_errors_of_the_file_and_the_storage_are_one_message(sweep_file, tmp_path, refused):
    said = refused("sweep", sweep_file(tmp_path, search={"space": {"training.epoch": [1]}}))
    assert said.splitlines()[1:] == ["  search.space: training.epoch: no such key (did you mean 'epochs'?)"]
    path = sweep_file(tmp_path)
    assert "--workers" in refused("sweep", path, "--workers", "0")
    assert "a mysql database" in refused("sweep", path, "--storage", "mysql://u:s3cret@h/d")
    assert "NOT_SET" in refused("sweep", path, "--storage", "postgresql://u:${NOT_SET}@h/d")


@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_the_same_run(sweep_file, tmp_path, cli):
    search = {"space": {"training.epochs": [25]}}
    path = sweep_file(tmp_path, search=search, seeds=[0], compare={"method": ["lora", "bitfit"]})
    folder, log = tmp_path / "sweeps" / "sweep", tmp_path / "log"
    process = start(path, log)
    wait_for(lambda: list(folder.glob("lora/*/checkpoints/*/trainer_state.json")), process)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert record(folder)["counts"] == {"running": 1, "waiting": 1}
    result = cli("sweep", path)
    assert result.code == 0
    assert "going on from checkpoint-" in result.err
    assert trained(log) == ["lora/epochs=25-seed0"]
    assert record(folder)["counts"] == {"measured": 2}


@pytest.mark.slow
def test_ctrl_c_gives_the_run_back_and_says_how_to_go_on(sweep_file, tmp_path):
    path = sweep_file(tmp_path, search={"space": {}}, seeds=[0])
    folder, log = tmp_path / "sweeps" / "sweep", tmp_path / "log"
    process = start(path, log, "--training.epochs", "2000")
    wait_for(lambda: list(folder.glob("lora/*/checkpoints/*/trainer_state.json")), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert "the same command goes on" in log.read_text()
    assert record(folder)["counts"] == {"waiting": 2}


@pytest.mark.slow
def test_worker_processes_share_the_runs_and_do_those_of_one_that_is_killed(sweep_file, tmp_path):
    path = sweep_file(tmp_path, seeds_for="all")
    folder, log = tmp_path / "sweeps" / "sweep", tmp_path / "log"
    process = start(path, log, "--workers", "2")
    logs = [folder / "workers" / f"{number}.log" for number in (1, 2)]
    wait_for(lambda: all(file.exists() and trained(file) for file in logs), process)
    victim = children(process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    assert process.wait(timeout=300) == 0
    assert "was killed by signal 9" in log.read_text()
    assert record(folder)["counts"] == {"trained": 4, "measured": 4}
    counts = Counter(trained(*logs))
    assert set(counts) == {
        name for item in record(folder)["contestants"] for c in item["candidates"] for name in c["runs"]
    }
    assert sum(counts.values()) - len(counts) <= 1  # the run of the killed one was taken up


def children(number):
    import psutil

    return [child.pid for child in psutil.Process(number).children()]


@pytest.fixture(scope="module")
def server():
    if binaries() is None:
        pytest.skip("no PostgreSQL server: neither pip's pgserver nor a system package")
    pytest.importorskip("psycopg")
    with postgres() as running:
        yield running


@pytest.mark.slow
def test_two_machines_pull_from_a_postgresql_server_that_goes_away_and_comes_back(
    sweep_file, tmp_path, server, monkeypatch
):
    storage = {"url": server.url().replace("s3cret", "${SWEEP_PASSWORD}"), "heartbeat": 1, "takeover_after": 60}
    monkeypatch.setenv("SWEEP_PASSWORD", "s3cret")
    path = sweep_file(tmp_path, storage=storage, seeds=[0])
    folder, logs = tmp_path / "sweeps" / "sweep", [tmp_path / "1.log", tmp_path / "2.log"]
    processes = [start(path, log) for log in logs]
    wait_for(lambda: any(trained(log) for log in logs), *processes)
    server.stop()
    wait_for(lambda: any("does not answer" in log.read_text() for log in logs), *processes)
    server.start()
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    names = trained(*logs)
    assert len(names) == len(set(names)) == 4
    assert record(folder)["counts"] == {"trained": 2, "measured": 2}
    said = "".join(log.read_text() for log in logs)
    assert f"the database postgresql://127.0.0.1:{server.port}/postgres is back" in said
    assert "s3cret" not in said + (folder / "sweep.json").read_text()


def test_a_wrong_password_and_an_unknown_database_are_said_at_once(sweep_file, tmp_path, server, refused):
    path = sweep_file(tmp_path)
    said = refused("sweep", path, "--storage", server.url(password="wr0ng"))
    assert "password authentication failed" in said
    assert "wr0ng" not in said
    assert 'database "nowhere" does not exist' in refused("sweep", path, "--storage", server.url(database="nowhere"))
