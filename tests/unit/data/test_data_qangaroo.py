"""WikiHop, on files made here in the official format."""

import json

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.readers.rows import ColumnNames
from foretoken.data.readers.user_data import read_examples
from foretoken.data.tasks.table import TASKS, task_errors
from foretoken.errors import DataError

COLUMNS = ColumnNames(problem="candidates")
NONE = DataOptions(task="pydocs")


def item(number, **changes):
    return {
        "id": f"WH_train_{number}",
        "query": f"country_of_citizenship person {number}",
        "candidates": ["france", "na\u00efve \U0001f600", "italy"],
        "answer": "italy",
        "supports": [f'Text "one" of {number}, {{[ .', "Text two . \\ end"],
    } | changes


def write(path, items, **style):
    path.write_text(items if isinstance(items, str) else json.dumps(items, **style), encoding="utf-8")
    return path


def folder(path, name="", count=30):
    write(path / f"train{name}.json", [item(number) for number in range(count)])
    write(path / f"dev{name}.json", [item(number, query=f"dev {number}") for number in range(5)])
    return path


def test_a_file_is_read_as_published(tmp_path):
    [example] = read_examples(write(tmp_path / "dev.json", [item(3)]), COLUMNS)
    assert example.id == "WH_train_3"
    assert example.question == "country_of_citizenship person 3"
    assert example.candidates == ("france", "na\u00efve \U0001f600", "italy")
    assert example.answer == 2
    assert example.supports == tuple(item(3)["supports"])
    assert example.where == f"{tmp_path / 'dev.json'}:item 1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": []}', ":1: no column 'query'"),
        ("[]", "has no questions"),
        ("[1]", ":item 1: got a JSON int, expected an object"),
        (json.dumps([item(1), item(2)])[:-30], ": malformed JSON: "),
        ([item(1), item(2, answer="Italy")], ":item 2: the answer 'Italy' is not among the 3 candidates (did you mean"),
        ([item(1, candidates=[])], ":item 1: 'candidates' holds [], expected a list of at least one text"),
        ([item(1, supports="one")], ":item 1: 'supports' holds 'one', expected a list"),
        ([item(1, supports=[1])], ":item 1: column 'supports' holds int, expected text"),
        ([item(1, query=" ")], ":item 1: 'query' is empty"),
        ([item(1), item(1)], ":item 2: id 'WH_train_1' was already used at"),
        ([{"query": "q", "candidate": [], "answer": "", "supports": []}], "no column 'candidates' (did you mean"),
    ],
)
def test_a_malformed_file_names_the_item(tmp_path, content, message):
    path = write(tmp_path / "dev.json", content)
    with pytest.raises(DataError) as caught:
        read_examples(path, COLUMNS)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_dev_is_the_test_and_validation_comes_from_train(tmp_path):
    data = load_data(DataOptions(task="wikihop", path=str(folder(tmp_path))))
    assert data.problem == "candidates"
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [27, 3, 5]
    assert all(row["question"].startswith("dev") for row in data.splits["test"])
    row = data.splits["test"][0]
    assert row["candidates"][row["label"]] == "italy"


def test_the_masked_files_are_a_task_of_their_own(tmp_path):
    folder(tmp_path, ".masked", count=3)
    corpus = TASKS["wikihop-masked"].read_raw(tmp_path, NONE)
    assert [len(corpus.splits[split]) for split in ("train", "test")] == [3, 5]
    with pytest.raises(DataError, match=r"'wikihop' needs a file train\.json here"):
        TASKS["wikihop"].read_raw(tmp_path, NONE)


def test_medhop_left_and_its_files_are_data_of_ones_own(tmp_path):
    assert task_errors({"task": "medhop"}) == [
        "task: 'medhop' left foretoken: name its files as data of your own, with data.problem candidates"
    ]
    folder(tmp_path, count=20)
    data = load_data(
        DataOptions(train=str(tmp_path / "train.json"), test=str(tmp_path / "dev.json"), problem="candidates")
    )
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [18, 2, 5]
