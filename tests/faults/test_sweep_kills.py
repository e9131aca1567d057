"""Sweeps on machines that are taken away again and again, and with files that are not what they should be."""

import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

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


def records(folder):
    return {
        path.parent.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in folder.glob("*/*/run.json")
    }


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
    for path in folder.glob("*/*/.foretoken-holder.json"):
        with suppress(OSError, ValueError):
            return json.loads(path.read_text())["process"]
    return None


def command(folder):
    """Return the process whose worker has a run; None where none has."""
    with suppress(OSError, TypeError):
        return int(Path(f"/proc/{worker(folder) or 'none'}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def sweep_and_kill(forked, path, folder, cwd, delay, workers=1):
    """Give the command, and kill it some time after it got on; tell whether it was killed."""
    before, ended = progress(folder), []
    words = ("sweep", path, "--workers", workers)
    thread = threading.Thread(target=lambda: ended.append(forked(*words, cwd=cwd, seconds=300, more_mb=0)))
    thread.start()
    while thread.is_alive() and progress(folder) == before:
        time.sleep(0.005)
    time.sleep(delay)
    process = (worker if workers == 1 else command)(folder) if thread.is_alive() else None
    if process is not None:
        os.kill(process, signal.SIGKILL)
    thread.join()
    return ended[0].code == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "kills"), [(1, 25), (2, 8)])
def test_a_sweep_that_is_killed_again_and_again_ends_as_one_that_is_not(workers, kills, forked, sweep_file, tmp_path):
    assert assert_done_or_refused(forked("sweep", sweep_file("calm"), cwd=tmp_path, seconds=300))
    path, folder = sweep_file("stormy"), tmp_path / "sweeps" / "stormy"
    chance = random.Random(0)
    killed = [sweep_and_kill(forked, path, folder, tmp_path, chance.uniform(0, 0.3), workers) for _ in range(kills)]
    assert sum(killed) >= 0.7 * kills, "the runs are too short for this test"
    assert assert_done_or_refused(forked("sweep", path, "--workers", workers, cwd=tmp_path, seconds=300, more_mb=0))
    assert all("test" in record for record in records(folder).values())
    assert not [path for path in folder.rglob(".foretoken-*") if path.suffix == ".tmp"]
    assert results(folder) == results(tmp_path / "sweeps" / "calm")


def half_trained(forked, path, folder, cwd):
    """Kill a sweep when its first run has a checkpoint, and let the run's record say that it failed."""
    assert sweep_and_kill(forked, path, folder, cwd, delay=0)
    assert checkpoints(folder)
    ((run, record),) = records(folder).items()
    (folder / run / "run.json").write_text(json.dumps(record | {"status": "failed", "error": "died"}))
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
    assert all("test" in record for record in records(folder).values())
    assert records(folder)[run]["steps"] == 60


def test_a_finished_sweep_with_a_damaged_record(forked, sweep_file, tmp_path):
    training = {"num_threads": 1, "max_steps": 2}
    recipe = yaml.safe_load(sweep_file().read_text())["recipe"] | {"training": training}
    path, folder = sweep_file(recipe=recipe), tmp_path / "sweeps" / "sweep"
    assert assert_done_or_refused(forked("sweep", path, cwd=tmp_path))
    whole, before = (folder / "sweep.json").read_bytes(), records(folder)
    (folder / "sweep.json").write_bytes(whole[:200])  # ours, cut short: written anew
    ended = forked("sweep", path, cwd=tmp_path)
    assert assert_done_or_refused(ended)
    assert json.loads((folder / "sweep.json").read_bytes()) == json.loads(whole)
    assert records(folder) == before
    (folder / "sweep.json").write_text('{"mine": 1}')
    ended = forked("sweep", path, cwd=tmp_path)
    assert not assert_done_or_refused(ended, lines=1)
    assert (folder / "sweep.json").read_text() == '{"mine": 1}'
