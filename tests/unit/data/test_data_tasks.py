"""The table of tasks, and the places where raw data are looked for."""

from pathlib import Path

import pytest
import yaml

from foretoken.data.options import DataOptions
from foretoken.data.problems import PROBLEMS
from foretoken.data.tasks.table import TASKS, find_raw, get_task
from foretoken.errors import ConfigError, DataError
from foretoken.metrics.table import METRICS

from support.data import load


def test_every_row_is_complete():
    assert {"pydocs", "20newsgroups", "hyperpartisan", "arxiv", "wikihop", "mnli", "multirc", "wnut17"} < set(TASKS)
    for name, task in TASKS.items():
        assert task.name == name
        assert all((task.title, task.summary, task.source, task.licence, task.sizes, task.splits))
        assert task.problem in PROBLEMS
        assert task.metric in METRICS
        assert len(set(task.labels)) == len(task.labels)
        assert bool(task.labels) == (task.problem in ("classification", "token-classification"))
        assert task.splits[0] == "clean"
    assert TASKS["20newsgroups"].hub_name == "SetFit/20_newsgroups"
    assert TASKS["pydocs"].hub_name is None
    assert TASKS["hyperpartisan"].labels[-1] == "hyperpartisan"


def test_tasks_of_the_bench_have_recipes():
    folder = Path(__file__).resolve().parents[3] / "recipes"
    named = {yaml.safe_load(path.read_text())["data"].get("task") for path in (folder / "tasks").glob("*.yaml")}
    assert named == set(TASKS)


def test_a_task_that_has_no_copy_on_the_hub():
    with pytest.raises(ConfigError, match="task 'webnlg' has no copy on the hub; get webnlg_challenge_2017"):
        load(DataOptions(task="webnlg", path="hub"))


def test_an_unknown_task():
    with pytest.raises(DataError, match=r"no task 'hyperpartizan' \(did you mean 'hyperpartisan'\?\)"):
        get_task("hyperpartizan")


def test_the_path_goes_first_then_the_variable(tmp_path, monkeypatch):
    work, variable = tmp_path / "work", tmp_path / "named" / "20newsgroups"
    for folder in (work, variable):
        folder.mkdir(parents=True)
    monkeypatch.setenv("FORETOKEN_DATA", str(tmp_path / "named"))
    assert find_raw(TASKS["20newsgroups"]) == variable
    assert find_raw(TASKS["20newsgroups"], str(work)) == work


def test_nothing_found_says_where_it_looked_and_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETOKEN_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError) as caught:
        find_raw(TASKS["hyperpartisan"], str(tmp_path / "none"))
    assert str(tmp_path / "none") in str(caught.value)
    assert str(tmp_path / "named") not in str(caught.value)
    with pytest.raises(DataError) as caught:
        find_raw(TASKS["hyperpartisan"])
    message = str(caught.value)
    assert str(tmp_path / "named" / "hyperpartisan") in message
    assert "https://zenodo.org" in message
    assert "set path to 'hub' to load hyperpartisan_news_detection" in message
    monkeypatch.delenv("FORETOKEN_DATA")
    with pytest.raises(DataError, match=r"\$FORETOKEN_DATA/hyperpartisan \(not set\)"):
        find_raw(TASKS["hyperpartisan"])
