"""SQuALITY: small files made here, and the real ones where they are at hand."""

import json
import os
from pathlib import Path

import pytest

from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

RAW = Path(os.environ.get("FORETOKEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data") / "squality"
NONE = DataOptions(task="pydocs")
TASK = TASKS["squality"]


def question(number, answers=("One.", " Two. ")):
    return {
        "question_text": f"What {number}?  ",
        "question_number": number,
        "responses": [{"worker_id": "w", "response_text": answer} for answer in answers],
    }


def story(name, **changes):
    return {
        "metadata": {"passage_id": name, "uid": "u"},
        "document": f"Story {name}\n\nEnd.\n",
        "questions": [question(1), question(2)],
    } | changes


def folder(path, stories=None):
    for split in ("train", "dev", "test"):
        items = stories if stories and split == "dev" else [story(f"{split}1"), story(f"{split}2")]
        (path / f"{split}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_one_example_per_question(tmp_path):
    corpus = TASK.read_raw(folder(tmp_path), NONE)
    assert [one.id for one in corpus.splits["test"]] == ["test1/1", "test1/2", "test2/1", "test2/2"]
    second = corpus.splits["validation"][1]
    assert second.source == "What 2?\n\nStory dev1\n\nEnd."
    assert second.references == ("One.", "Two.")
    assert (second.group, second.where) == ("dev1", f"{tmp_path / 'dev.jsonl'}:1")


@pytest.mark.parametrize(
    ("stories", "message"),
    [
        ([story("a"), story("b", document="")], ":2: 'document' is empty"),
        ([story("a", questions=[])], ":1: 'questions' holds no list of questions"),
        ([story("a", questions=[question(1), question(2, ())])], ":1: question 2 has no responses"),
        ([story("a", questions=[question(1, [" "])])], ":1: question 1: 'response_text' is empty"),
        ([story("a", questions=[{}])], ":1: question 1: no 'question_text'"),
        ([story("a", metadata={})], ":1: no 'passage_id'; expected a record of SQuALITY v1.3"),
        ([story("a"), story("a")], ":2: id 'a/1' was already used at"),
        ([{"document": "x"}], ":1: no column 'metadata'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, stories, message):
    with pytest.raises(DataError) as caught:
        TASK.read_raw(folder(tmp_path, stories), NONE)
    assert f"{tmp_path / 'dev.jsonl'}{message}" in str(caught.value)


@pytest.mark.skipif(not RAW.is_dir(), reason="the raw data are not at hand")
def test_the_real_files():
    splits = TASK.read_raw(RAW, NONE).splits
    assert {split: len(examples) for split, examples in splits.items()} == {
        "train": 250,
        "validation": 125,
        "test": 260,
    }
    assert all(len(one.references) == 4 for examples in splits.values() for one in examples)
    assert [len({one.group for one in examples}) for examples in splits.values()] == [50, 25, 52]
