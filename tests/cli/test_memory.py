"""What a run says about its memory."""

import sys

import pyarrow.parquet as pq
import pytest
import torch

from foretoken.data import schemas
from foretoken.data.documents import Document
from foretoken.training.trainer.memory import PeakMemory
from foretoken_cli import main

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


def test_tables_on_disk_are_those_in_memory(tiny, record, tmp_path, monkeypatch):
    """A run is the same where its texts and tokens lie in files; these have no name once they are open."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    changes = {"output": str(tmp_path), "training": {"epochs": 1}}
    assert main(["train", str(tiny.recipe(tmp_path / "one.yaml", name="one", **changes))]) == 0
    monkeypatch.setattr(schemas, "_ROWS", 7)
    assert main(["train", str(tiny.recipe(tmp_path / "two.yaml", name="two", **changes))]) == 0
    one, two = (record(tmp_path / name) for name in ("one", "two"))
    for key in ("documents", "fingerprint", "test", "validation", "labels"):
        assert one[key] == two[key]
    tables = [pq.read_table(tmp_path / name / "predictions.parquet") for name in ("one", "two")]
    assert tables[0].equals(tables[1])
    assert not list((tmp_path / "cache").glob(".*"))


def test_tables_stay_in_memory_where_no_file_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(schemas, "_ROWS", 2)
    rows = [Document(str(number), f"text {number}", "ab"[number % 2], "here") for number in range(5)]
    table = schemas.table("classification", rows, ["a", "b"])
    assert table["text"][:] == [row.text for row in rows]
    assert table.cache_files == []
