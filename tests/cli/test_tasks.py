"""`foretoken tasks`: the table, one task, and where its data are."""

import re
import sys

import pytest

from foretoken.data.tasks.table import TASKS


@pytest.mark.parametrize("is_terminal", [False, True])
def test_every_task_is_there_in_80_columns(is_terminal, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    lines = re.sub(r"\x1b\[\d+m", "", cli("tasks").out).splitlines()
    assert not is_terminal or max(map(len, lines)) <= 80
    firsts = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert [name for name in firsts if name in TASKS] == list(TASKS)
    joined = "".join("".join(lines).split())
    assert is_terminal or all("".join(task.title.split()) in joined for task in TASKS.values())


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
