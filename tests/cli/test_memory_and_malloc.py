"""What a run says about its memory, and the allocator."""

import os
import subprocess
import sys

import pytest
import torch

from foretoken.memory import malloc_is_tuned
from foretoken.training.trainer.memory import PeakMemory

ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@ON_LINUX
def test_the_peak_is_of_this_run_not_of_an_earlier_one():
    large = PeakMemory()
    held = torch.ones(100_000_000)  # 400 MB
    del held
    peak = large.measured()["rss_peak_bytes"]
    small = PeakMemory()
    if not small.is_fresh:
        pytest.skip("this kernel does not let a process forget its peak")
    held = torch.ones(10_000_000)
    del held
    later = small.measured()["rss_peak_bytes"]
    assert peak - later > 300_000_000
    assert later - PeakMemory().before > 20_000_000


def test_a_peak_that_cannot_be_told_from_an_earlier_one_is_not_claimed(monkeypatch):
    monkeypatch.setattr("foretoken.training.trainer.memory.reset_peak", lambda: False)
    monkeypatch.setattr("foretoken.training.trainer.memory.peak_bytes", lambda: 5_000)
    memory = PeakMemory()
    assert memory.measured()["rss_peak_bytes"] is None
    monkeypatch.setattr("foretoken.training.trainer.memory.peak_bytes", lambda: 6_000)
    assert memory.measured()["rss_peak_bytes"] == 6_000


def test_a_run_records_and_says_its_peak(finished, tiny, tmp_path, cli, record):
    values = record(finished)
    assert set(values["memory"]) == {"rss_peak_bytes", "cuda_peak_bytes", "cuda_reserved_peak_bytes"}
    assert values["hardware"]["malloc_tuned"] == malloc_is_tuned()
    result = cli("train", tiny.recipe(tmp_path / "r.yaml", training={"epochs": 1}))
    peak = record(tmp_path / "runs" / "run")["memory"]["rss_peak_bytes"]
    assert f"peak memory: {peak / 1e6:,.0f} MB of main memory" in result.err


@ON_LINUX
@pytest.mark.parametrize(
    ("words", "variable", "said"),
    [
        ((), "1", "allocator: glibc keeps freed memory"),
        (("--no-malloc",), "1", "allocator: left as it is (--no-malloc)"),
        pytest.param((), "0", "allocator: left as it is (FORETOKEN_MALLOC=0)", marks=pytest.mark.slow),
    ],
)
def test_every_verb_can_leave_the_allocator_alone(words, variable, said):
    command = [sys.executable, "-m", "foretoken", "lengthen", "./nowhere", "out", "--debug", *words]
    done = subprocess.run(command, env=os.environ | {"FORETOKEN_MALLOC": variable}, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"foretoken: {said}" in done.stderr


def test_without_debug_the_allocator_is_not_mentioned(cli):
    assert "allocator" not in cli("tasks").err


@pytest.mark.slow
def test_the_public_function_says_whether_it_worked():
    code = (
        "import foretoken as f; from foretoken.memory import malloc_is_tuned; print(f.tune_malloc(), malloc_is_tuned())"
    )
    run = {
        value: subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"FORETOKEN_MALLOC": value}, capture_output=True, text=True
        ).stdout.split()
        for value in ("0", "1")
    }
    assert run["0"] == ["False", "False"]
    assert run["1"] in (["True", "True"], ["False", "False"])  # there, or no glibc
