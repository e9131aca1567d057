"""CoQA, on files made here in the official format."""

import json
import logging

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks.coqa import read_conversations
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

NONE = DataOptions(task="pydocs")
TASK = TASKS["coqa"]


def turns(texts):
    return [{"input_text": text, "turn_id": number, "span_text": "x"} for number, text in enumerate(texts, start=1)]


def record(number, **changes):
    return {
        "source": "race" if number % 2 else "cnn",
        "id": f"c{number}",
        "filename": "f",
        "story": f" Story {number}. ",
        "questions": turns(["Q1?", "Q2?", "Q3?", "Q4?"]),
        "answers": turns(["a1", "a2", "a3", "a4"]),
        "name": "f",
    } | changes


ADDITIONAL = {"1": turns(["c1", "c2", "c3", "c4"]), "0": turns(["b1", "b2", "b3", "b4"])}


def write(path, records):
    content = records if isinstance(records, str) else json.dumps({"version": "1.0", "data": records})
    path.write_text(content, encoding="utf-8")
    return path


def folder(path):
    write(path / "coqa-train-v1.0.json", [record(number) for number in range(20)])
    write(path / "coqa-dev-v1.0.json", [record(30 + number, additional_answers=ADDITIONAL) for number in range(2)])
    return path


def test_the_source_holds_the_passage_two_turns_and_the_question(tmp_path):
    path = write(tmp_path / "x.json", [record(1, additional_answers=ADDITIONAL)])
    first, second, _, fourth = read_conversations(path)
    assert first.source == "<bos_qa> <document> Story 1. <question> Q1?"
    assert second.source == "<bos_qa> <document> Story 1. <question> Q1? <answer> a1 <question> Q2?"
    assert fourth.source == (
        "<bos_qa> <document> Story 1. <question> Q2? <answer> a2 <question> Q3? <answer> a3 <question> Q4?"
    )
    assert fourth.references == ("a4", "b4", "c4")
    assert (fourth.id, fourth.group, fourth.part, fourth.where) == ("c1/4", "c1", "race", f"{path}:record 1")
    assert read_conversations(path, turns=0)[3].source == "<bos_qa> <document> Story 1. <question> Q4?"
    assert read_conversations(path, turns=9)[3].source.count("<answer>") == 3


def test_conversations_stay_together_and_dev_is_the_test(tmp_path):
    data = load_data(DataOptions(task="coqa", path=str(folder(tmp_path)))).splits
    assert [len(data[split]) for split in ("train", "validation", "test")] == [72, 8, 8]
    assert not set(data["train"]["group"]) & set(data["validation"]["group"])
    assert data["test"][0]["references"] == ["a1", "b1", "c1"]
    assert set(data["test"]["part"]) == {"race", "cnn"}


def test_turns_without_an_answer_are_left_out_and_named(tmp_path, caplog):
    path = write(tmp_path / "x.json", [record(1, answers=turns(["a1", " ", "a3", "a4"]))])
    with caplog.at_level(logging.INFO, logger="foretoken.data"):
        examples = read_conversations(path)
    assert [one.id for one in examples] == ["c1/1", "c1/3", "c1/4"]
    assert "record 1: turn 2 has an empty question or answer" in caplog.text


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("[]", "no list 'data'"),
        ('{"data": [', ":1:11: malformed JSON"),
        ([record(1), record(2, story=" ")], ":record 2: 'story' is empty"),
        ([{"id": "1"}], ":record 1: no 'story'"),
        ([record(1, answers=turns(["a"]))], ":record 1: 4 questions but 1 answers"),
        ([record(1, additional_answers={"0": turns(["a"])})], ":record 1: 4 questions but 1 answers"),
        ([record(1, additional_answers=[])], ":record 1: 'additional_answers' holds list"),
        ([record(1, questions=[{}])], ":record 1: questions: no 'input_text'"),
        ([record(1, questions=[])], ":record 1: 'questions' holds no list of turns"),
        ([record(1), record(1)], ":record 2: id 'c1/1' was already used at"),
        ([3], ":record 1: no 'story'"),
    ],
)
def test_a_malformed_record_is_named(tmp_path, records, message):
    path = write(tmp_path / "x.json", records)
    with pytest.raises(DataError) as caught:
        read_conversations(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
