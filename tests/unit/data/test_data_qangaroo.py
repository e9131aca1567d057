"""WikiHop and MedHop, on files made here in the official format."""

import json
import logging

import datasets
import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.readers import json_files
from foretoken.data.readers.json_files import stream_objects
from foretoken.data.readers.user_data import read_candidates
from foretoken.data.tasks.qangaroo import TASKS
from foretoken.errors import DataError

BY_NAME = {task.name: task for task in TASKS}
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
    [example] = read_candidates(write(tmp_path / "dev.json", [item(3)]))
    assert example.id == "WH_train_3"
    assert example.question == "country_of_citizenship person 3"
    assert example.candidates == ("france", "na\u00efve \U0001f600", "italy")
    assert example.answer == 2
    assert example.supports == tuple(item(3)["supports"])
    assert example.where == f"{tmp_path / 'dev.json'}:item 1"


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_the_stream_is_what_json_loads_whatever_the_chunks(tmp_path, monkeypatch, chunk, style):
    monkeypatch.setattr(json_files, "_CHUNK", chunk)
    items = [item(number) for number in range(4)]
    path = write(tmp_path / "a.json", items, **style)
    assert [value for _, value in stream_objects(path)] == items
    path.write_bytes(b"\xef\xbb\xbf [ ] \n")
    assert list(stream_objects(path)) == []


def test_only_a_little_of_a_long_file_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "_CHUNK", 1000)
    path = write(tmp_path / "a.json", [item(number) for number in range(2000)])
    longest, more = 0, json_files._Text._more

    def watched(self, *arguments, **options):
        nonlocal longest
        found = more(self, *arguments, **options)
        longest = max(longest, len(self._buffer))
        return found

    monkeypatch.setattr(json_files._Text, "_more", watched)
    assert sum(1 for _ in stream_objects(path)) == 2000
    assert 0 < longest < 5000 < path.stat().st_size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": []}', ":1:1: expected a JSON list"),
        ("", "expected a JSON list"),
        ("[]", "has no questions"),
        ("[1]", ":item 1: got a JSON int, expected an object"),
        (json.dumps([item(1), item(2)])[:-30], ":item 2: malformed JSON: "),
        (json.dumps([item(1)])[:-1], ":item 1: malformed JSON: expected ',' or ']' after it, got the end"),
        (json.dumps([item(1)])[:-1] + " {}]", ":item 1: malformed JSON: expected ',' or ']' after it, got '{'"),
        ([item(1), item(2, answer="Italy")], ":item 2: the answer 'Italy' is not among the 3 candidates (did you mean"),
        ([item(1, candidates=[])], ":item 1: 'candidates' holds [], expected a list of at least one text"),
        ([item(1, supports="one")], ":item 1: 'supports' holds 'one', expected a list"),
        ([item(1, supports=[1])], ":item 1: column 'supports' holds int, expected text"),
        ([item(1, query=" ")], ":item 1: the query is empty"),
        ([item(1), item(1)], ":item 2: id 'WH_train_1' was already used at"),
        ([{"query": "q", "candidate": [], "answer": "", "supports": []}], "no column 'candidates' (did you mean"),
    ],
)
def test_a_malformed_file_names_the_item(tmp_path, content, message):
    path = write(tmp_path / "dev.json", content)
    with pytest.raises(DataError) as caught:
        read_candidates(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_candidates(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'[{"query": "caf\xe9"}]')
    with pytest.raises(DataError, match="not valid UTF-8 near byte 16"):
        read_candidates(tmp_path / "latin.json")
    (tmp_path / "cut.json").write_bytes(b'[{"query": "caf\xc3')
    with pytest.raises(DataError, match="not valid UTF-8"):
        read_candidates(tmp_path / "cut.json")
    with pytest.raises(DataError, match="is a folder, expected a file"):
        read_candidates(tmp_path)


def test_dev_is_the_test_and_validation_comes_from_train(tmp_path):
    data = load_data(DataOptions(task="wikihop", path=str(folder(tmp_path))))
    assert data.problem == "candidates"
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [27, 3, 5]
    assert all(row["question"].startswith("dev") for row in data.splits["test"])
    row = data.splits["test"][0]
    assert row["candidates"][row["label"]] == "italy"


def test_the_official_split_selects_on_dev_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        data = load_data(DataOptions(task="wikihop", path=str(folder(tmp_path)), split="official")).splits
    assert [len(data[split]) for split in ("train", "validation", "test")] == [30, 5, 5]
    assert data["validation"]["question"][:] == data["test"]["question"][:]
    assert "its scores are optimistic" in caplog.text


def test_the_masked_files_are_tasks_of_their_own(tmp_path):
    folder(tmp_path, ".masked", count=3)
    corpus = BY_NAME["medhop-masked"].read_raw(tmp_path, NONE)
    assert [len(corpus.splits[split]) for split in ("train", "test")] == [3, 5]
    with pytest.raises(DataError, match=r"'medhop' needs a file train\.json here"):
        BY_NAME["medhop"].read_raw(tmp_path, NONE)


@pytest.mark.parametrize(("name", "config"), [("wikihop", "wikihop"), ("medhop-masked", "masked_medhop")])
def test_the_hub_copy(monkeypatch, name, config):
    asked = []
    items = [item(number) for number in range(4)]
    table = datasets.Dataset.from_list(items)

    def load_dataset(*arguments):
        asked.append(arguments)
        return datasets.DatasetDict({"train": table, "validation": table.select([1])})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpus = BY_NAME[name].read_hub(NONE)
    assert asked == [("community-datasets/qangaroo", config)]
    assert [example.id for example in corpus.splits["train"]] == [one["id"] for one in items]
    assert [example.answer for example in corpus.splits["test"]] == [2]
