"""Sweeps in small: every variant and searched value of a file on a tiny model, with made-up documents."""

from pathlib import Path

import pytest

from foretoken.data import load
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.report.runs.records import find_runs
from foretoken.sweeps.plan import load_plan
from foretoken.sweeps.space import ValueList

from support.made_up import made_up
from support.small_sweeps import DOCUMENTS, covering, smoke

PAPERS = sorted((Path(__file__).resolve().parents[3] / "recipes" / "papers").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    """Let tasks that need raw data have made-up documents."""
    read = load._read_task

    def read_task(name, options):
        return made_up(TASKS[name], DOCUMENTS) if TASKS[name].needs_raw else read(name, options)

    monkeypatch.setattr(load, "_read_task", read_task)
    monkeypatch.chdir(tmp_path)


def test_the_candidates_have_every_value_of_every_field():
    class Wide:
        space = {"a": ValueList((1, 2, 3)), "b": ValueList(("x", "y"))}  # noqa: RUF012

    found = list(covering(Wide()))
    assert [params["a"] for params in found] == [1, 2, 3]
    assert {params["b"] for params in found} == {"x", "y"}


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.needs_raw])
def test_every_task_can_be_made_up(name):
    data = load.load_data(DataOptions(task=name))
    assert data.problem == TASKS[name].problem
    assert all(len(data.splits[split]) >= DOCUMENTS for split in ("train", "validation", "test"))
    if TASKS[name].problem == "classification":
        assert set(data.labels) == set(TASKS[name].labels)


def test_a_sweep_runs_in_small_and_names_what_fails(write, monkeypatch):
    path = write(
        recipe={"model": "google-bert/bert-base-uncased", "data": {"task": "rte"}, "method": "bitfit"},
        compare={"method": [{"name": "lora", "r": 2}, {"name": "lora", "target_modules": ["no_such_map"]}]},
        search={"space": {"training.learning_rate": [0.1, 0.01]}},
    )
    plan = load_plan(path)
    tried = smoke(plan)
    assert [item.run.rpartition("-")[2] for item in tried] == ["0", "1", "0", "1"]
    assert [item.error is None for item in tried] == [True, True, False, False]
    assert "No modules were targeted" in tried[2].error
    runs = find_runs([plan.config.folder / "smoke" / "runs"])
    finished = [run for run in runs if run.is_finished]
    assert [run.recipe["training"]["learning_rate"] for run in finished] == [0.1, 0.01]
    assert all(run.values["steps"] == 1 and run.scores("test") for run in finished)
    assert (plan.config.folder / "smoke" / "report" / "index.html").is_file()


def test_one_fold_stands_for_all(write, tmp_path):
    rows = [f"{word} number {number},{word}" for number in range(10) for word in ("tea", "milk")]
    (tmp_path / "drinks.csv").write_text("\n".join(["text,label", *rows, ""]))
    data = {"path": str(tmp_path / "drinks.csv"), "folds": 2}
    recipe = {"model": "google-bert/bert-base-uncased", "data": data, "method": "bitfit"}
    path = write(recipe=recipe, compare=None, search={"space": {"training.learning_rate": [0.1]}})
    assert [item.error for item in smoke(load_plan(path))] == [None]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_sweeps_of_the_papers_run(path, tmp_path):
    tried = smoke(load_plan(path, output=str(tmp_path)))
    assert [item for item in tried if item.error is not None] == []
    assert (tmp_path / path.stem / "smoke" / "report" / "index.html").is_file()
