"""`foretoken tasks`: the table, one task, and where its data are."""

import re
import sys

from foretoken.data.tasks.table import TASKS


def test_a_pipe_gets_every_cell_of_every_task_on_one_line(cli):
    header, *rows = cli("tasks").out.splitlines()
    assert header.split("  ")[0] == "task"
    assert [row.split()[0] for row in rows] == list(TASKS)
    [mnli] = [row for row in rows if row.startswith("mnli ")]
    task = TASKS["mnli"]
    assert all(
        cell in mnli for cell in (task.title, task.problem, "3", task.sizes, task.metric, task.source, task.licence)
    )


def test_a_terminal_of_80_columns_shows_all_of_it(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = re.sub(r"\x1b\[\d+m", "", cli("tasks").out)
    assert max(map(len, out.splitlines())) <= 80
    joined = "".join(out.split())
    for task in TASKS.values():
        for cell in (task.name, task.title, task.problem, task.sizes, task.metric, task.source, task.licence):
            assert "".join(cell.split()) in joined


def test_one_task(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("FORETOKEN_DATA", raising=False)
    out = cli("tasks", "rte").out
    for part in ("not_entailment, entailment", "clean, official", "nyu-mll/glue (data.path: hub)", "CoLA.zip"):
        assert (part in out) == (part != "CoLA.zip")
    assert "not looked for: set FORETOKEN_DATA, for $FORETOKEN_DATA/glue/RTE, or data.path" in out
    monkeypatch.setenv("FORETOKEN_DATA", str(tmp_path))
    place = tmp_path / "glue" / "RTE"
    assert f"{place}: not there" in cli("tasks", "rte").out
    place.mkdir(parents=True)
    (place / "dev.tsv").touch()
    assert f"{place}: there (dev.tsv)" in cli("tasks", "rte").out
    assert "none needed" in cli("tasks", "pydocs").out


def test_an_unknown_task(cli):
    result = cli("tasks", "mnlii")
    assert result.code == 2
    assert "no task 'mnlii' (did you mean 'mnli'?)" in result.err
