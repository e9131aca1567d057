"""Run and sweep folders that anything may have happened to: read as far as they can be, else refused."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretoken_cli import main

from support.faults.forked import SCREENFUL, Ended, assert_done_or_refused
from support.faults.mutations import JSON, places, replaced
from support.made_runs import make_run

TAG = "<script>alert('x')</script>"
SIZES = (-1, 0, 10**9, 10**30, -(10**400), 1e308, -1e-320, float("nan"), float("inf"))
TEXTS = ("", "\x1b[31m", "\u202e", "\ud800", "a\nb", "x" * 5000, TAG, "=1+1", "../..", "f1_macro", "finished", "test")
DEEP = [[]]
for _ in range(300):
    DEEP = [DEEP]
VALUES = st.sampled_from([*SIZES, *TEXTS, None, True, [], {}, [[]], {TAG: TAG}, {"": {}}, DEEP]) | JSON
ANY = {
    "deadline": None,
    "derandomize": False,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
}
QUICK = ANY | {"derandomize": True}  # the same damage in every run of the default suite; the slow tests look further


def change_values(draw, file):
    values = json.loads(file.read_text())
    for _ in range(draw(st.integers(1, 3))):
        values = replaced(values, draw(st.sampled_from([(), *places(values)])), draw(VALUES))
    file.write_bytes(json.dumps(values).encode("utf-8", "surrogatepass"))


def change_bytes(draw, file):
    content = bytearray(file.read_bytes())
    kind = draw(st.sampled_from(("cut", "flip", "insert")))
    place = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "cut":
        del content[place:]
    elif kind == "insert":
        content[place:place] = draw(st.binary(min_size=1, max_size=20))
    else:
        for _ in range(draw(st.integers(1, 8))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    file.write_bytes(content)


def change_kind(draw, file):
    kind = draw(st.sampled_from(("gone", "folder", "pipe", "loop", "huge", "zero")))
    file.unlink()
    if kind == "folder":
        file.mkdir()
        (file / "up").symlink_to("..")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind in ("loop", "zero"):
        file.symlink_to(file.name if kind == "loop" else "/dev/zero")
    elif kind == "huge":
        with file.open("wb") as opened:
            opened.truncate(2**30)


CHANGES = (change_values, change_values, change_values, change_bytes, change_kind)
FILES = ("run.json", "run.json", "run.json", "predictions.parquet", "adapter/foretoken.json")


@pytest.fixture(scope="module")
def runs(forked, tiny_files, tmp_path_factory):
    """Two finished runs, and two that are made up."""
    folder = tmp_path_factory.mktemp("mutated")
    for seed in (0, 1):
        training = {"num_threads": 1, "max_steps": 2, "eval_every": 1, "seed": seed}
        (folder / "r.yaml").write_text(yaml.safe_dump(tiny_files.values(training=training, name=f"run{seed}")))
        assert assert_done_or_refused(forked("train", "r.yaml", cwd=folder))
    for seed in (0, 1):
        make_run(folder / "runs" / f"made{seed}", "bitfit", seed=seed, correct=[True, False, True, True])
    return folder / "runs"


@pytest.fixture
def report_without_figures(capsys, monkeypatch):
    """Report in this process, without the figures, which take a hundred times as long as all the rest."""
    monkeypatch.setattr("foretoken.report.figures.FIGURES", {})

    def run(*words, cwd):
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            code = main(["report", *words])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err, seconds=0, peak_mb=0, timed_out=False)

    return run


def check_runs(data, forked, report, runs, tiny_files):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        shutil.copytree(runs, root / "runs")
        names = st.sampled_from(sorted(path.name for path in runs.iterdir()))
        victims = data.draw(st.lists(names, min_size=1, max_size=4))
        for victim in victims:
            file = root / "runs" / victim / data.draw(st.sampled_from(FILES))
            change = data.draw(st.sampled_from(CHANGES))
            if not file.is_file() or (change is change_values and file.suffix != ".json"):
                continue
            try:
                change(data.draw, file)
            except ValueError:  # the values are no JSON any more, by an earlier change
                continue
        ended = report("runs", "-o", "out", cwd=root)
        if assert_done_or_refused(ended):
            page = (root / "out" / "index.html").read_text(encoding="utf-8")
            assert TAG not in page
            assert page.count("<script") == 1
        else:
            assert not (root / "out").exists()
        assert all(line.isprintable() for line in ended.err.splitlines() + ended.out.splitlines())
        run = sorted(path for path in (root / "runs").iterdir() if path.name.startswith("run"))[0]
        assert_done_or_refused(forked("evaluate", run, tiny_files.data, cwd=root, seconds=60))


@settings(max_examples=5, **QUICK)
@given(data=st.data())
def test_any_run_folder_is_reported_or_left_out(data, forked, report_without_figures, runs, tiny_files):
    check_runs(data, forked, report_without_figures, runs, tiny_files)


@pytest.fixture(scope="module")
def swept(forked, tiny_files, tmp_path_factory):
    """A finished sweep of two runs."""
    folder = tmp_path_factory.mktemp("swept")
    recipe = {"model": str(tiny_files.model), "data": {"path": str(tiny_files.data)}, "method": "bitfit"}
    search = {"strategy": "tpe", "trials": 2, "space": {"training.learning_rate": {"low": 0.01, "high": 0.1}}}
    values = {"recipe": recipe | {"training": {"num_threads": 1, "max_steps": 1}}, "search": search}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    assert assert_done_or_refused(forked("sweep", "sweep.yaml", cwd=folder))
    return folder


def check_sweep(data, forked, swept):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "work"
        shutil.copytree(swept, root)
        for file in sorted(root.glob("sweeps/sweep/**/*.json")):
            if file.name in ("run.json", "candidates.json", "sweep.json") and data.draw(st.booleans()):
                data.draw(st.sampled_from((change_values, change_values, change_bytes)))(data.draw, file)
        ended = forked("sweep", "sweep.yaml", cwd=root, seconds=120, more_mb=0)
        assert_done_or_refused(ended, lines=SCREENFUL)  # a recipe changed in a record differs in every key


@settings(max_examples=3, **QUICK)
@given(data=st.data())
def test_any_sweep_folder_is_gone_on_with_or_refused(data, forked, swept):
    check_sweep(data, forked, swept)


@pytest.mark.slow
@settings(max_examples=150, **ANY)
@given(data=st.data())
def test_any_sweep_folder_is_gone_on_with_or_refused_at_length(data, forked, swept):
    check_sweep(data, forked, swept)
