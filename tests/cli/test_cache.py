"""`foretoken cache`, and what a second run takes from it."""

import json
import os
import subprocess
import sys
import time

import pytest
import yaml

from foretoken_cli import main

from support.tiny_run import documents, write_csv

SHORT = {"epochs": 1, "num_threads": 1}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def train(tiny, tmp_path, cli):
    """Train for an epoch under a name of its own; return what was said and the record."""

    def run(name, **changes):
        recipe = tiny.recipe(tmp_path / f"{name}.yaml", name=name, training=SHORT, **changes)
        result = cli("train", recipe)
        assert result.code == 0, result.err
        return result, json.loads((tmp_path / "runs" / name / "run.json").read_text())

    return run


def without_times(record):
    return {
        key: record[key] for key in ("documents", "fingerprint", "labels", "max_length", "validation", "test", "best")
    }


def said(result):
    """The lines about the data."""
    return [line for line in result.err.splitlines() if " documents" in line or "warning" in line]


def test_a_second_run_says_and_does_the_same_and_makes_nothing_anew(store, train, tmp_path):
    first, one = train("one")
    before = sorted(path.name for path in store.iterdir())
    second, other = train("other")
    assert sorted(path.name for path in store.iterdir()) == before
    assert len(before) == 2
    assert said(first) == said(second) != []
    assert without_times(one) == without_times(other)
    predictions = [(tmp_path / "runs" / name / "predictions.parquet").read_bytes() for name in ("one", "other")]
    assert predictions[0] == predictions[1]


def test_what_is_cached_is_listed_by_data_set_and_cleared(store, train, tmp_path, cli):
    assert cli("cache").out.startswith(f"{store.parent}: 0 entries, 0.0 MB of at most 10,000.0 MB")
    data = write_csv(tmp_path / "more.csv", documents(100))
    train("one")
    train("other", data={"path": str(data)})
    lines = cli("cache").out.splitlines()
    assert len([line for line in lines if str(data) in line and "today" in line]) == 2
    assert lines[-1].startswith(f"{store.parent}: 4 entries, ")
    keys = [line.split()[0] for line in cli("cache", "--entries").out.splitlines()[1:-1]]
    assert sorted(keys) == sorted(path.name[:12] for path in store.iterdir())
    assert cli("cache", "--clear", keys[0]).out.startswith(f"{store.parent}: removed 1 entry, ")
    assert cli("cache", "--clear", "--unused", "3").out.startswith(f"{store.parent}: removed 0 entries")
    old = next(store.iterdir())
    os.utime(old / "entry.json", (0, time.time() - 5 * 86400))
    assert "5 days ago" in cli("cache", "--entries").out
    assert cli("cache", "--clear", "--unused", "3").out.startswith(f"{store.parent}: removed 1 entry, ")
    assert not old.exists()
    (store / "notes.txt").write_text("not ours")
    assert cli("cache", "--clear").out.startswith(f"{store.parent}: removed 2 entries")
    assert [path.name for path in store.iterdir()] == ["notes.txt"]


def test_errors_are_said_in_one_line(store, train, refused, monkeypatch):
    assert refused("cache", "--clear", "abc") == (
        "--clear: no entry has the key 'abc'; foretoken cache --entries lists them"
    )
    assert refused("cache", "--unused", "3") == "--unused says what --clear removes; give both"
    assert "expected a whole number from 0" in refused("cache", "--clear", "--unused", "long")
    monkeypatch.setenv("FORETOKEN_CACHE_LIMIT", "much")
    assert refused("cache") == "FORETOKEN_CACHE_LIMIT: got 'much', expected a size, e.g. 500MB or 10GB"


def test_switched_off_it_says_so(cli, monkeypatch):
    monkeypatch.setenv("FORETOKEN_CACHE", "off")
    assert cli("cache").out == "nothing is cached: FORETOKEN_CACHE switches it off\n"


def test_a_damaged_entry_is_said_listed_and_made_again(store, train, cli):
    train("one")
    for folder in store.iterdir():
        (folder / "entry.json").write_text("{")
    assert "damaged  -      2 " in cli("cache").out
    result, _ = train("other")
    assert result.err.count("are damaged") == 2
    assert "damaged  " not in cli("cache").out


def test_a_read_only_cache_costs_one_line(store, train, monkeypatch):
    store.parent.write_text("a file where a folder should be")
    first, one = train("one")
    assert first.err.count("nothing can be cached") == 1
    assert one["status"] == "finished"


@pytest.mark.slow
def test_two_processes_at_once_both_go_on(store, tiny, tmp_path, record):
    code = "import sys; from foretoken_cli import main; sys.exit(main(sys.argv[1:]))"
    recipes = [tiny.recipe(tmp_path / f"{name}.yaml", name=name, training=SHORT) for name in ("one", "other")]
    workers = [subprocess.Popen([sys.executable, "-c", code, "train", str(recipe)]) for recipe in recipes]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]
    assert len(list(store.iterdir())) == 2
    one, other = (record(tmp_path / "runs" / name) for name in ("one", "other"))
    assert without_times(one) == without_times(other)


@pytest.mark.slow
def test_a_sweep_reads_and_tokenises_once(store, tiny, tmp_path, monkeypatch):
    from foretoken.training.run import prepare

    counts = []
    for name in ("load_data", "_tokenised"):
        function = getattr(prepare, name)
        monkeypatch.setattr(
            prepare, name, lambda *given, name=name, function=function: counts.append(name) or function(*given)
        )
    sweep = tmp_path / "sweep.yaml"
    values = {
        "recipe": {"model": str(tiny.model), "data": {"path": str(tiny.data)}, "training": SHORT},
        "output": str(tmp_path / "sweeps"),
        "compare": {"method": [{"name": "lora", "r": 2}, "prefix-tuning"]},
        "seeds": [0, 1],
    }
    sweep.write_text(yaml.safe_dump(values))
    assert main(["sweep", str(sweep)]) == 0
    assert counts == ["load_data", "_tokenised"]
