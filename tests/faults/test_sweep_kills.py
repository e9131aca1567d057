"""Sweeps on machines that are taken away again and again, and on databases that are not what they should be."""

import json
import os
import random
import signal
import sqlite3
import threading
import time

import pytest
import yaml

from support.faults.forked import assert_done_or_refused


@pytest.fixture
def sweep_file(tiny_files, tmp_path):
    """Write a sweep of two variants, with a checkpoint after every few steps."""

    def write(name="sweep", **changes):
        training = {"num_threads": 1, "max_steps": 240, "eval_every": 6, "batch_size": 4, "learning_rate": 0.01}
        values = {
            "recipe": {"model": str(tiny_files.model), "data": {"path": str(tiny_files.data)}, "training": training},
            "compare": {"method": ["bitfit", {"name": "prefix-tuning", "num_virtual_tokens": 2}]},
            "seeds": [0],
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values | changes))
        return path

    return write


def states(folder):
    with sqlite3.connect(folder / "sweep.db") as database:
        return dict(database.execute("SELECT run, state FROM foretoken_runs"))


def change(folder, statement):
    with sqlite3.connect(folder / "sweep.db") as database:
        database.execute(statement)


def results(folder):
    """Return what a sweep found, without times and names of files."""
    record = json.loads((folder / "sweep.json").read_text())
    for variant in record["contestants"]:
        for candidate in variant["candidates"]:
            for run in candidate["runs"].values():
                del run["seconds"]
    return {key: record[key] for key in ("status", "counts", "contestants", "failures")}


def checkpoints(folder):
    return {path.parent for path in folder.glob("*/*/checkpoints/*/trainer_state.json")}


def progress(folder):
    """Return what a kill may come after: checkpoints and finished runs."""
    return checkpoints(folder) | {path for path in folder.glob("*/*/run.json") if "finished" in path.read_text()}


def worker(folder):
    """Return the process that has a run; None where none has."""
    with sqlite3.connect(folder / "sweep.db") as database:
        owners = database.execute("SELECT owner FROM foretoken_runs WHERE state IN ('running', 'measuring')").fetchall()
    return int(owners[0][0].split("/")[1]) if owners else None


def sweep_and_kill(forked, path, folder, cwd, delay):
    """Give the command, and kill it some time after it got on; tell whether it was killed."""
    before, ended = progress(folder), []
    thread = threading.Thread(target=lambda: ended.append(forked("sweep", path, cwd=cwd, seconds=300)))
    thread.start()
    while thread.is_alive() and progress(folder) == before:
        time.sleep(0.005)
    time.sleep(delay)
    process = worker(folder) if thread.is_alive() else None
    if process is not None:
        os.kill(process, signal.SIGKILL)
    thread.join()
    return ended[0].code == -signal.SIGKILL


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_ends_as_one_that_is_not(forked, sweep_file, tmp_path):
    assert assert_done_or_refused(forked("sweep", sweep_file("calm"), cwd=tmp_path, seconds=300))
    path, folder = sweep_file("stormy"), tmp_path / "sweeps" / "stormy"
    chance = random.Random(0)
    killed = [sweep_and_kill(forked, path, folder, tmp_path, chance.uniform(0, 0.3)) for _ in range(25)]
    assert sum(killed) >= 20, "the runs are too short for this test"
    assert assert_done_or_refused(forked("sweep", path, cwd=tmp_path, seconds=300))
    assert set(states(folder).values()) == {"measured"}
    assert results(folder) == results(tmp_path / "sweeps" / "calm")


def half_trained(forked, path, folder, cwd):
    """Kill a sweep when its first run has a checkpoint, and let the run table say that the run failed."""
    assert sweep_and_kill(forked, path, folder, cwd, delay=0)
    assert checkpoints(folder)
    (run,) = [name for name, state in states(folder).items() if state == "running"]
    change(folder, f"UPDATE foretoken_runs SET state='failed', error='died', takeovers=3 WHERE run='{run}'")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_failed_runs_that_are_tried_again_go_on_from_their_checkpoints(workers, forked, sweep_file, tmp_path):
    training = {"num_threads": 1, "max_steps": 60, "eval_every": 6, "batch_size": 4}
    path = sweep_file(recipe=yaml.safe_load(sweep_file().read_text())["recipe"] | {"training": training})
    folder = tmp_path / "sweeps" / "sweep"
    run = half_trained(forked, path, folder, tmp_path)
    ended = forked("sweep", path, "--retry-failed", "--workers", workers, cwd=tmp_path, seconds=200, more_mb=0)
    assert assert_done_or_refused(ended)
    said = ended.err + "".join(log.read_text() for log in folder.glob("workers/*.log"))
    assert said.count("going on from checkpoint-") == 1
    assert states(folder) == dict.fromkeys(states(folder), "measured")
    assert json.loads((folder / run / "run.json").read_text())["steps"] == 60


def database_file(kind, path):
    """Make a database that no sweep can use."""
    path.parent.mkdir(parents=True)
    if kind == "a folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("hello " * 1000)
    elif kind == "other tables":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE foretoken_runs (name TEXT)")
    elif kind == "a view":
        with sqlite3.connect(path) as database:
            database.execute("CREATE VIEW foretoken_runs AS SELECT 1 AS sweep, 2 AS run, 3 AS step")
    elif kind == "in a file":
        path.parent.rmdir()
        path.parent.write_text("")


@pytest.mark.parametrize("kind", ["a folder", "text", "other tables", "a view", "in a file"])
def test_a_database_that_cannot_be_one_is_refused_in_one_line(kind, forked, sweep_file, tmp_path):
    database_file(kind, tmp_path / "place" / "x.db")
    ended = forked("sweep", sweep_file(), "--storage", f"sqlite:///{tmp_path}/place/x.db", cwd=tmp_path)
    assert not assert_done_or_refused(ended, lines=1)
    assert "x.db" in ended.error[0] or "place" in ended.error[0]


def test_a_database_in_memory_is_refused(forked, sweep_file, tmp_path):
    for url in ("sqlite://", "sqlite:///:memory:"):
        ended = forked("sweep", sweep_file(), "--storage", url, cwd=tmp_path)
        assert not assert_done_or_refused(ended, lines=1)
        assert "a database in memory" in ended.error[0]


def test_a_database_that_another_program_locks_is_waited_for_and_then_given_up(forked, sweep_file, tmp_path):
    path = sweep_file(storage={"url": f"sqlite:///{tmp_path}/x.db", "give_up_after": 1})
    with sqlite3.connect(tmp_path / "x.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        ended = forked("sweep", path, cwd=tmp_path)
    assert not assert_done_or_refused(ended, lines=1)
    assert "has been down for" in ended.error[0]
    assert "locked" in ended.error[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_a_database_that_cannot_be_written_is_said(forked, sweep_file, tmp_path):
    (tmp_path / "x.db").touch(0o400)
    ended = forked("sweep", sweep_file(), "--storage", f"sqlite:///{tmp_path}/x.db", cwd=tmp_path)
    assert not assert_done_or_refused(ended, lines=1)
    assert "readonly" in ended.error[0]


def test_a_finished_sweep_with_a_damaged_record_or_database(forked, sweep_file, tmp_path):
    training = {"num_threads": 1, "max_steps": 2}
    recipe = yaml.safe_load(sweep_file().read_text())["recipe"] | {"training": training}
    path, folder = sweep_file(recipe=recipe), tmp_path / "sweeps" / "sweep"
    assert assert_done_or_refused(forked("sweep", path, cwd=tmp_path))
    whole = (folder / "sweep.json").read_bytes()
    (folder / "sweep.json").write_bytes(whole[:200])  # ours, cut short: written anew
    assert assert_done_or_refused(forked("sweep", path, cwd=tmp_path))
    assert json.loads((folder / "sweep.json").read_bytes()) == json.loads(whole)
    (folder / "sweep.json").write_text('{"mine": 1}')
    ended = forked("sweep", path, cwd=tmp_path)
    assert not assert_done_or_refused(ended, lines=1)
    assert (folder / "sweep.json").read_text() == '{"mine": 1}'
    (folder / "sweep.json").unlink()
    content = (folder / "sweep.db").read_bytes()
    (folder / "sweep.db").write_bytes(content[: len(content) // 2])
    ended = forked("sweep", path, cwd=tmp_path)
    assert not assert_done_or_refused(ended, lines=1)
    assert "sweep.db cannot be used" in ended.error[0]
    assert (folder / "sweep.db").read_bytes() == content[: len(content) // 2]
