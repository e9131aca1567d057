"""Questions about contexts: SQuAD's files, tables, ReCoRD, and what is wrong with them."""

import json
import logging

import datasets
import pytest

from foretoken.data.load import load_data, load_examples
from foretoken.data.options import DataOptions
from foretoken.data.problems import QUESTION_ANSWERING
from foretoken.errors import ConfigError, DataError

from support.data import load_inputs

TOWNS = ("Rome", "Lyon", "Bonn", "Oslo", "Bern", "Prag", "Riga", "Genf", "Graz", "Kiew", "Linz", "Metz")
OWN = {"problem": QUESTION_ANSWERING}


def context(town):
    return f"The café of {town} is old. People of {town} like it."


def asked(town, name, *, possible=True):
    """One record of SQuAD: where is the café?"""
    answers = [{"text": town, "answer_start": context(town).index(town)}]
    record = {"id": name, "question": f"  Where is the café {name}?", "answers": answers if possible else []}
    return record | {"is_impossible": not possible} | ({} if possible else {"plausible_answers": answers})


def squad(path, towns, *, version="1.1", impossible=()):
    articles = [
        {
            "title": town,
            "paragraphs": [
                {
                    "context": context(town),
                    "qas": [asked(town, f"{town}{n}", possible=n not in impossible) for n in (0, 1)],
                }
            ],
        }
        for town in towns
    ]
    if version == "1.1":
        for article in articles:
            for one in article["paragraphs"][0]["qas"]:
                del one["is_impossible"]
    path.write_text(json.dumps({"version": version, "data": articles}), encoding="utf-8")
    return path


def texts(split):
    return [[row["context"][begin:end] for begin, end in row["answers"]] for row in split]


@pytest.mark.parametrize(("task", "version"), [("squad", "v1.1"), ("squad2", "v2.0")])
def test_squad_in_its_own_files(tmp_path, task, version):
    impossible = (1,) if task == "squad2" else ()
    for split, towns in (("train", TOWNS[:10]), ("dev", TOWNS[10:])):
        squad(tmp_path / f"{split}-{version}.json", towns, version=version[1:], impossible=impossible)
    data = load_data(DataOptions(task=task, path=str(tmp_path)))
    assert data.problem == QUESTION_ANSWERING
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [18, 2, 4]
    first = data.splits["test"][0]
    assert (first["id"], first["question"], first["context"]) == ("Linz0", "Where is the café Linz0?", context("Linz"))
    assert texts(data.splits["test"]) == [
        ["Linz"],
        [] if impossible else ["Linz"],
        ["Metz"],
        [] if impossible else ["Metz"],
    ]
    articles = {split: {row["context"] for row in data.splits[split]} for split in ("train", "validation")}
    assert not articles["train"] & articles["validation"]
    official = load_data(DataOptions(task=task, path=str(tmp_path), split="official"))
    assert official.splits["validation"]["question"][:] == official.splits["test"]["question"][:]


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet", "squad"])
def test_own_questions_in_any_format(tmp_path, form):
    rows = [
        {"id": f"{town}{n}", "question": f"Where is the café {town}{n}?", "context": context(town), "answers": answers}
        for town in TOWNS
        for n, answers in enumerate(({"text": [town], "answer_start": [12]}, {"text": [], "answer_start": []}))
    ]
    path = tmp_path / f"mine.{'json' if form == 'squad' else form}"
    if form == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif form == "json":
        path.write_text(json.dumps(rows))
    elif form == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    else:
        squad(path, TOWNS, version="2.0", impossible=(1,))
    found = load_examples(path, DataOptions(path=str(path), **OWN), QUESTION_ANSWERING, [])
    assert found.column_names == ["id", "group", "question", "context", "answers"]
    assert texts(found) == [[town] if n == 0 else [] for town in TOWNS for n in (0, 1)]
    assert [row["question"] for row in found] == [row["question"] for row in rows]
    data = load_data(DataOptions(path=str(path), **OWN))
    contexts = [{row["context"] for row in data.splits[split]} for split in ("train", "validation", "test")]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == len(TOWNS)
    inputs = load_inputs(path, DataOptions(path=str(path), **OWN), QUESTION_ANSWERING)
    assert inputs.column_names == ["id", "group", "question", "context"]


def test_an_answer_that_stands_elsewhere_is_taken_at_the_nearest_place(tmp_path, caplog):
    row = {"question": "Where?", "context": context("Rome"), "answers": [{"text": "Rome", "answer_start": 30}]}
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row))
    with caplog.at_level(logging.WARNING, "foretoken"):
        found = load_examples(path, DataOptions(path=str(path), **OWN), QUESTION_ANSWERING, [])
    assert found["answers"][:] == [[[context("Rome").rindex("Rome"), context("Rome").rindex("Rome") + 4]]]
    assert "1 answers do not begin at their answer_start" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": {"text": ["Paris"], "answer_start": [3]}}, "'Paris' is not in the context"),
        ({"answers": {"text": ["Rome"], "answer_start": []}}, "as many texts"),
        ({"answers": {"text": ["Rome"], "answer_start": ["12"]}}, "answer_start is '12'"),
        ({"answers": "Rome"}, "'answers' holds str"),
        ({"context": " "}, "'context' is empty"),
        ({"question": None}, "'question' has no value"),
    ],
)
def test_rows_that_cannot_be_read_are_named(tmp_path, change, message):
    good = {"question": "Where?", "context": context("Rome"), "answers": {"text": ["Rome"], "answer_start": [12]}}
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, [good, good | change])))
    with pytest.raises(DataError, match=rf"mine.jsonl:2.*{message}"):
        load_examples(path, DataOptions(path=str(path), **OWN), QUESTION_ANSWERING, [])


def test_what_is_wrong_in_a_file_of_squad_is_named(tmp_path):
    path = squad(tmp_path / "train.json", TOWNS)
    content = json.loads(path.read_text())
    content["data"][2]["paragraphs"][0]["qas"][1]["answers"] = []
    path.write_text(json.dumps(content, indent=1))
    with pytest.raises(DataError, match=r"article 3, paragraph 1, question 'Bonn1': no answers; .*is_impossible"):
        load_data(DataOptions(path=str(path), **OWN))
    path.write_text('{"version": "1.1"}')
    with pytest.raises(DataError, match=r"no column 'question'.*; the columns are version"):
        load_data(DataOptions(path=str(path), **OWN))
    with pytest.raises(ConfigError, match="text_column has no use with problem 'question-answering'"):
        DataOptions(path=str(path), text_column="question", **OWN)


def record(number):
    """A record of ReCoRD: the ends of entities are those of their last characters."""
    text = f"Ada {number} met Charles in London.\n@highlight\nAda wrote."
    spans = [
        (name, at) for name in ("Ada", "Charles", "London") for at in range(len(text)) if text.startswith(name, at)
    ]
    entities = [{"start": at, "end": at + len(name) - 1} for name, at in spans]
    answers = [{"start": at, "end": at + 2, "text": "Ada"} for name, at in spans if name == "Ada"]
    queries = [{"query": "It was @placeholder who wrote.", "answers": answers, "idx": number}]
    return {"source": "made up", "idx": number, "passage": {"text": text, "entities": entities}, "qas": queries}


def write_record(folder, change=lambda one: one):
    for name, numbers in (("train", range(10)), ("val", range(10, 13))):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(change(record(number))) for number in numbers))
    return DataOptions(task="record", path=str(folder))


def test_record_has_the_marked_entities_as_what_can_be_answers(tmp_path):
    data = load_data(write_record(tmp_path))
    assert [len(data.splits[split]) for split in ("train", "validation", "test")] == [9, 1, 3]
    row = data.splits["test"][0]
    assert (row["id"], row["group"], row["question"]) == ("10/10", "10", "It was @placeholder who wrote.")
    assert texts([row]) == [["Ada", "Ada"]]
    assert [row["context"][begin:end] for begin, end in row["mentions"]] == ["Ada", "Charles", "London", "Ada"]


def test_record_on_the_hub_is_the_same(tmp_path, monkeypatch):
    raw = load_data(write_record(tmp_path)).splits["test"]

    def row(number):
        one = record(number)
        text, spans = one["passage"]["text"], one["passage"]["entities"]
        names = [text[span["start"] : span["end"] + 1] for span in spans]
        places = {"text": names, "start": [span["start"] for span in spans], "end": [span["end"] + 1 for span in spans]}
        answer = {"answers": ["Ada"], "idx": {"passage": number, "query": number}}
        return {"passage": text, "query": one["qas"][0]["query"], "entity_spans": places} | answer

    parts = {"train": range(10), "validation": range(10, 13)}
    tables = datasets.DatasetDict(
        {name: datasets.Dataset.from_list([row(n) for n in part]) for name, part in parts.items()}
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: tables)
    hub = load_data(DataOptions(task="record", path="hub")).splits["test"]
    assert hub.to_list() == raw.to_list()


def test_records_that_cannot_be_scored_are_named(tmp_path):
    for change, message in (
        (lambda one: one["qas"][0].update(answers=[]), "query 0 has no answer"),
        (lambda one: one["passage"]["entities"].append({"start": 3}), "not as the task's records .*KeyError: 'end'"),
    ):
        with pytest.raises(DataError, match=rf"train.jsonl:1: {message}"):
            load_data(write_record(tmp_path, lambda one, change=change: change(one) or one))
