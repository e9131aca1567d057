"""`foretoken train` in two processes on a CPU."""

import os
import subprocess
import sys

import pytest


def torchrun(recipe, *words):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29617"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "-m", "foretoken", "train", str(recipe), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_two_processes_share_the_batches_and_one_of_them_speaks(tiny, tmp_path, record):
    options = {"tokens_per_batch": 64, "gradient_accumulation_steps": 2, "epochs": 2}
    done = torchrun(tiny.recipe(tmp_path / "r.yaml", training=options))
    assert done.returncode == 0, done.stderr
    values = record(tmp_path / "runs" / "run")
    assert values["status"] == "finished"
    assert values["hardware"]["processes"] == 2
    assert done.stdout.count("adapter, record and predictions") == 1
    assert done.stderr.count("documents in ") == 1
    batches = int(done.stderr.split("documents in ")[1].split()[0])
    assert batches % 2 == 0
    assert values["steps"] == 2 * -(-(batches // 2) // 2)


@pytest.mark.slow
def test_measuring_by_tokens_in_two_processes_is_refused_in_one_line(tiny, tmp_path):
    done = torchrun(tiny.recipe(tmp_path / "r.yaml", training={"eval_tokens_per_batch": 64}))
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "foretoken: error" in line]
    assert lines
    assert not (tmp_path / "runs").exists()
    assert all("training.eval_tokens_per_batch: 2 processes share out what is measured" in line for line in lines)
