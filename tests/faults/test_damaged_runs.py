"""Damaged run folders in a report."""

import json
import os
import shutil

import pytest

from foretoken.report.runs.records import find_runs
from foretoken_cli import main

from support.made_runs import make_run

DAMAGES = {
    "cut short": lambda run: (run / "run.json").write_bytes((run / "run.json").read_bytes()[:100]),
    "a folder": lambda run: ((run / "run.json").unlink(), (run / "run.json").mkdir()),
    "a pipe": lambda run: ((run / "run.json").unlink(), os.mkfifo(run / "run.json")),
    "a loop": lambda run: ((run / "run.json").unlink(), (run / "run.json").symlink_to("run.json")),
    "deep": lambda run: (run / "run.json").write_text('{"status": ' + "[" * 300 + "]" * 300 + "}"),
    "no text": lambda run: change(run, name=7),
    "epochs": lambda run: change(run, epochs={"1": 2}),
}


def change(run, **values):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | values))


@pytest.fixture
def without_figures(monkeypatch):
    monkeypatch.setattr("foretoken.report.figures.FIGURES", {})


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_in_one_line_and_left_out(damage, without_figures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        make_run(tmp_path / "runs" / name, seed=ord(name))
    DAMAGES[damage](tmp_path / "runs" / "b")
    assert main(["report", "runs", "-o", "out"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("foretoken: warning: 1 run folder cannot be read and left out: runs/b: run.json")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "2 of 3 runs counted" in page
    for name in ("a", "c"):
        shutil.rmtree(tmp_path / "runs" / name)
    assert main(["report", "runs", "-o", "other"]) == 2
    assert "none of 1 run folder can be read (runs/b: run.json" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_of_many_damaged_runs_a_few_are_named(without_figures, tmp_path, capsys):
    make_run(tmp_path / "runs" / "good")
    for number in range(1000):
        (tmp_path / "runs" / f"bad{number}").mkdir()
        (tmp_path / "runs" / f"bad{number}" / "run.json").write_text("{")
    assert main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert "1000 run folders cannot be read" in line
    assert line.endswith("and 997 more")


def test_what_a_restart_has_renamed_is_read_where_it_is_named(tmp_path):
    make_run(tmp_path / "runs" / "mail")
    (tmp_path / "runs" / "mail").rename(tmp_path / "runs" / "mail.1")
    make_run(tmp_path / "runs" / "mail")
    make_run(tmp_path / "runs" / "mail.2")  # a name that its user has chosen
    assert [run.name for run in find_runs([tmp_path / "runs"])] == ["mail", "mail.2"]
    (named,) = find_runs([tmp_path / "runs" / "mail.1"])
    assert named.folder.name == "mail.1"


def test_links_in_a_circle_end(tmp_path):
    make_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "self").symlink_to("self")
    assert [run.name for run in find_runs([tmp_path / "runs"])] == ["a"]


def test_a_place_that_no_file_system_has_is_refused(capsys):
    assert main(["report", "x" * 5000]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"PAR1", "a pipe", "a loop"])
def test_damaged_predictions_are_named_and_leave_the_scores(content, without_figures, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [make_run(tmp_path / name, name, correct=[True, False]) for name in ("lora", "bitfit")]
    file = folders[0] / "predictions.parquet"
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        {"a pipe": lambda: os.mkfifo(file), "a loop": lambda: file.symlink_to(file)}[content]()
    assert main(["report", ".", "-o", "out"]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert "2 of 2 runs counted" in page
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert "warning: the predictions of 1 run are left out: " in line
    assert "lora: predictions.parquet" in line
