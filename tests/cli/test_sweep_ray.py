"""`foretoken sweep --ray` on a real local cluster of two workers; a machine that does not share the folder."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from foretoken.sweeps.plan import load_plan
from foretoken.sweeps.runs import Job
from foretoken.sweeps.workers import unpack

from support.clusters import local_cluster

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own warnings, of any kind


@pytest.fixture(scope="module")
def cluster():
    """A cluster: its address, and the folder of its workers' logs."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder, local_cluster(_temp_dir=folder) as address:
        yield address, Path(folder) / "session_latest" / "logs"


@pytest.fixture
def sweep_file(tiny, tmp_path):
    """A sweep of four runs; the paths in it are seen from its folder."""
    (tmp_path / "model").symlink_to(tiny.model)
    (tmp_path / "mail.csv").symlink_to(tiny.data)
    training = {"num_threads": 1, "epochs": 20, "batch_size": 8}
    values = {
        "recipe": {"model": "model", "data": {"path": "mail.csv"}, "training": training},
        "compare": {"method": [{"name": "lora", "r": 2}, "bitfit"]},
        "search": {"space": {"training.learning_rate": [0.03, 0.001]}},
    }
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "command"])
def test_a_killed_process_loses_no_run_doubles_none_and_its_run_goes_on(victim, cluster, sweep_file, tmp_path):
    address, logs = cluster
    seen = {file: len(file.read_text()) for file in logs.glob("worker-*.err")}
    command = [sys.executable, "-m", "foretoken", "sweep", sweep_file.name, "--ray", address, "--workers", "2"]
    folder = tmp_path / "sweeps" / "sweep"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as sweep:
        while not (found := list(folder.glob("*/*/checkpoints/checkpoint-[1-9]*/checksums.json"))):
            assert sweep.poll() is None, sweep.stderr.read()
            time.sleep(0.01)
        run = found[0].parents[2]
        holder = json.loads((run / ".foretoken-holder.json").read_text())["process"]
        os.kill(holder if victim == "worker" else sweep.pid, signal.SIGKILL)
        assert sweep.wait(300) == (0 if victim == "worker" else -signal.SIGKILL), sweep.stderr.read()
    if victim == "command":
        subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=True, timeout=300)
    assert json.loads((folder / "sweep.json").read_text())["counts"] == {"trained": 2, "measured": 2}
    said = "".join(file.read_text()[seen.get(file, 0) :] for file in logs.glob("worker-*.err"))
    names = {file.parent.relative_to(folder).as_posix() for file in folder.glob("*/*/run.json")}
    began = re.findall(r"^foretoken: training: (\S+)$", said, re.MULTILINE)
    assert set(began) == names
    assert said.count("foretoken: peak memory") == len(names) == 4  # runs that were trained to their end
    again = len(began) - len(names)  # those that were under way
    assert said.count("going on from checkpoint-") in range(1, again + 1)
    assert again == 1 if victim == "worker" else again <= 2
    assert not list(folder.glob(".foretoken-*"))


def test_a_cluster_that_is_not_there_is_said_in_one_line(sweep_file, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = refused("sweep", sweep_file, "--ray", "127.0.0.1:1")
    assert "--ray: the cluster at 127.0.0.1:1 cannot be used" in said


def test_where_the_folder_is_not_shared_a_run_comes_back_and_goes_there_to_be_measured(
    sweep_file, tmp_path, monkeypatch
):
    from foretoken.sweeps import ray_workers

    monkeypatch.chdir(tmp_path)
    plan = load_plan(sweep_file, ["--training.epochs", "1"])
    recipe = plan.recipe(plan.variants[0], {"training.learning_rate": 0.03}, 0)
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:  # machines that have the model and the data
        place.mkdir()
        (place / "model").symlink_to(tmp_path / "model")
        (place / "mail.csv").symlink_to(tmp_path / "mail.csv")
    marker, here = tmp_path / "gone", tmp_path / recipe.run_folder
    monkeypatch.setattr("ray.get", lambda sent: sent)
    trained = ray_workers._do(Job(recipe), places[0], marker, lambda: None, [])
    assert not here.exists()
    unpack(trained.files, here)
    measured = ray_workers._do(Job(recipe, measure=True), places[1], marker, lambda: None, [trained.files])
    unpack(measured.files, here)
    assert (trained.error, measured.error) == (None, None)
    assert list(measured.files)[-1] == "run.json"
    assert "f1_macro" in json.loads((here / "run.json").read_text())["test"]
    names = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()}
    assert names >= {"adapter/adapter_model.safetensors", "predictions.parquet", "run.json"}
    assert not any(name.startswith(("checkpoints", ".")) for name in names)
