"""The table of tasks, the places where raw data are looked for, and the task made of installed documentation."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from foretoken.data.options import DataOptions
from foretoken.data.problems import PROBLEMS
from foretoken.data.tasks import pydocs
from foretoken.data.tasks.table import TASKS, find_raw, get_task
from foretoken.errors import ConfigError, DataError, MissingDataError
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


NAMES = {"numpy", "scipy", "sklearn", "torch", "pandas", "statistics", "transformers", "optimisation"}


@pytest.mark.slow
def test_the_documents():
    splits = pydocs.documents()
    counts = {split: Counter(document.label for document in found) for split, found in splits.items()}
    assert all(set(found) == set(pydocs.SOURCES) for found in counts.values())
    assert min(counts["train"].values()) >= 40
    assert min(*counts["validation"].values(), *counts["test"].values()) >= 8
    found = [document for documents in splits.values() for document in documents]
    words = sorted(len(document.text.split()) for document in found)
    assert words[0] >= pydocs.SHORTEST
    assert words[len(words) // 2] >= 500
    assert words[-len(words) // 10] >= 900
    homes, seen = {}, {}
    for split, documents in splits.items():
        for document in documents:
            assert homes.setdefault(document.where, split) == split  # a file is in one split
            letters = "".join(letter if letter.isalnum() else " " for letter in document.text.lower())
            assert not set(letters.split()) & NAMES, document.id
            for line in document.text.split("\n"):
                if len(line.split()) >= 25:
                    assert seen.setdefault(line, split) == split


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("a scipy.sparse.linalg.LinearOperator here", "a [name].LinearOperator here"),
        ("scikit-learn's estimators and PyTorch tensors", "[name]'s estimators and [name] tensors"),
        ("Optimizers for neural networks", "[name] for [name]"),
        ("torch_function and mytorch", "[name]_function and mytorch"),
        ("tablet", "tablet"),
    ],
)
def test_mask(text, masked):
    assert pydocs.mask(text) == masked


def test_a_topic_without_packages_is_named(monkeypatch):
    monkeypatch.setattr(pydocs, "SOURCES", {"one": ("no_such_package/*.py",)})
    with pytest.raises(MissingDataError, match="too few documents of 'one'; install datasets, numpy"):
        pydocs.documents.__wrapped__()
