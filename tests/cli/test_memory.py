"""What a run says about its memory."""

import sys

import pytest
import torch

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
    result = cli("train", tiny.recipe(tmp_path / "r.yaml", training={"epochs": 1}))
    peak = record(tmp_path / "runs" / "run")["memory"]["rss_peak_bytes"]
    assert f"peak memory: {peak / 1e6:,.0f} MB of main memory" in result.err
