"""Sweeps in small: every variant and searched value of a file on a tiny model, with made-up documents."""

from pathlib import Path

import pytest

from foretoken.data import load
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.sweeps.plan import load_plan

from support.made_up import made_up
from support.small_sweeps import DOCUMENTS, smoke

PAPERS = sorted((Path(__file__).resolve().parents[3] / "recipes" / "papers").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    """Let tasks that need raw data have made-up documents."""
    read = load._read_task

    def read_task(name, options):
        return made_up(TASKS[name], DOCUMENTS) if TASKS[name].needs_raw else read(name, options)

    monkeypatch.setattr(load, "_read_task", read_task)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.needs_raw])
def test_every_task_can_be_made_up(name):
    data = load.load_data(DataOptions(task=name))
    assert data.problem == TASKS[name].problem
    assert all(len(data.splits[split]) >= DOCUMENTS for split in ("train", "validation", "test"))
    if TASKS[name].problem == "classification":
        assert set(data.labels) == set(TASKS[name].labels)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_sweeps_of_the_papers_run(path, tmp_path):
    smoke(load_plan(path, output=str(tmp_path)), tmp_path / "smoke")
    assert (tmp_path / "smoke" / "report" / "index.html").is_file()
