"""The table of tasks, and the places where raw data are looked for."""

import pytest

from foretoken.data.tasks import TASKS, find_raw, get_task
from foretoken.errors import DataError


def test_every_row_is_complete():
    assert list(TASKS) == ["pydocs", "20newsgroups", "hyperpartisan"]
    for name, task in TASKS.items():
        assert task.name == name
        assert all((task.title, task.summary, task.metric, task.source, task.licence))
        assert len(set(task.labels)) == len(task.labels) >= 2
    assert TASKS["20newsgroups"].hub_name == "SetFit/20_newsgroups"
    assert TASKS["pydocs"].hub_name is None
    assert TASKS["hyperpartisan"].labels[-1] == "hyperpartisan"


def test_an_unknown_task():
    with pytest.raises(DataError, match=r"no task 'hyperpartizan' \(did you mean 'hyperpartisan'\?\)"):
        get_task("hyperpartizan")


def test_the_path_goes_first_then_the_variable(tmp_path, monkeypatch):
    work, variable = tmp_path / "work", tmp_path / "named" / "20newsgroups"
    for folder in (work, variable):
        folder.mkdir(parents=True)
    monkeypatch.setenv("FORETOKEN_DATA", str(tmp_path / "named"))
    assert find_raw("20newsgroups") == variable
    assert find_raw("20newsgroups", str(work)) == work


def test_nothing_found_says_where_it_looked_and_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETOKEN_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError) as caught:
        find_raw("hyperpartisan", str(tmp_path / "none"))
    assert str(tmp_path / "none") in str(caught.value)
    assert str(tmp_path / "named") not in str(caught.value)
    with pytest.raises(DataError) as caught:
        find_raw("hyperpartisan")
    message = str(caught.value)
    assert str(tmp_path / "named" / "hyperpartisan") in message
    assert "https://zenodo.org" in message
    assert "set path to 'hub' to load hyperpartisan_news_detection" in message
    monkeypatch.delenv("FORETOKEN_DATA")
    with pytest.raises(DataError, match=r"\$FORETOKEN_DATA/hyperpartisan \(not set\)"):
        find_raw("hyperpartisan")
