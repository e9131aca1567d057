"""Hub names, copies of built-in tasks on the hub, and folders written by save_to_disk; no network."""

import logging
from operator import attrgetter

import datasets
import pytest

from foretoken.data.load import load_examples
from foretoken.data.options import DataOptions
from foretoken.data.problems import CLASSIFICATION
from foretoken.data.readers.hub import hub_name
from foretoken.data.tasks.table import TASKS
from foretoken.errors import ConfigError, DataError

from support.data import load


def made(count=40, names=("yes", "no")):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    return datasets.Dataset.from_dict(
        {"text": [f"text {i}" for i in range(count)], "label": [i % 2 for i in range(count)]}, features=features
    )


def test_a_saved_table_and_a_saved_dict(tmp_path):
    made().save_to_disk(tmp_path / "one")
    data = load(DataOptions(path=str(tmp_path / "one")))
    assert data["train"].features["label"].names == ["no", "yes"]
    assert all((int(row["text"].split()[1]) % 2 == 0) == (row["label"] == 1) for row in data["train"])
    tables = {"train": made(), "dev": made(6).map(lambda row: {"text": "dev " + row["text"]}), "other": made(2)}
    datasets.DatasetDict(tables).save_to_disk(tmp_path / "several")
    data = load(DataOptions(path=str(tmp_path / "several")))
    assert [len(data[split]) for split in ("train", "validation", "test")] == [36, 6, 4]
    assert len(load_examples(tmp_path / "one", DataOptions(path="unused"), CLASSIFICATION, ["no", "yes"])) == 40
    with pytest.raises(DataError, match="holds the splits train, validation, expected one table"):
        load_examples(tmp_path / "several", DataOptions(path="unused"), CLASSIFICATION, ["no", "yes"])


def test_hub_names_and_local_paths_are_told_apart(tmp_path, monkeypatch):
    assert hub_name("owner/some-data.v2") == "owner/some-data.v2"
    assert hub_name("hub:imdb") == "imdb"
    for local in ("a.csv", "data/a.jsonl", "./a/b", "/a/b", "~/a", "a/b/c", "folder"):
        assert hub_name(local) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)  # a local folder goes first
    with pytest.raises(DataError, match="no usable files"):
        load(DataOptions(path="owner/name"))


def test_an_unreachable_hub_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as caught:
        load(DataOptions(path="nobody/nothing"))
    message = str(caught.value)
    assert "'nobody/nothing'" in message
    assert "was not loaded (" in message
    assert "set path to a local copy" in message
    assert "\n" not in message


@pytest.fixture
def hub(monkeypatch):
    """The hub's answers by name; requests are recorded."""
    answers, asked = {}, []

    def load_dataset(name, config_name=None):
        asked.append((name, config_name))
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return answers, asked


def test_a_hub_data_set_is_read_by_its_columns_and_config(hub):
    answers, asked = hub
    answers["owner/name"] = datasets.DatasetDict({"train": made().rename_columns({"text": "body", "label": "y"})})
    options = DataOptions(path="owner/name", config_name="small", text_column="body", label_column="y")
    assert sum(map(len, load(options).values())) == 40
    assert asked == [("owner/name", "small")]
    with pytest.raises(DataError, match=r"'owner/name' \[train\]: no column 'txt'; the columns are body, y"):
        load(DataOptions(path="owner/name", text_column="txt"))
    assert {split: rows.to_list() for split, rows in load(DataOptions(path="owner/name")).items()} == {
        split: rows.to_list() for split, rows in load(options).items()
    }


PARQUET = {"data_dir": None, "revision": "refs/convert/parquet"}
OPTIONS = DataOptions(task="pydocs")
TAGS = datasets.List(datasets.ClassLabel(names=["O", "B-person", "I-person"]))
WORDS = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": TAGS})
STORY = {
    "metadata": {"passage_id": "a", "uid": "u"},
    "document": "Story.\n",
    "questions": [{"question_text": "What? ", "responses": [{"response_text": text} for text in ("One.", " Two. ")]}],
}
TALK = {
    "source": "cnn",
    "story": "S.",
    "questions": ["Q1?", "Q2?"],
    "answers": {"input_text": ["a1", "a2"], "answer_start": [0, 1]},
}
ITEM = {"id": "q", "query": "where", "candidates": ["here", "there"], "answer": "there", "supports": ["a"]}
ARTICLE = {"text": "<p>Body <a href='x'>no</a>. &amp;#160;here</p><p>End</p>", "title": "Title", "hyperpartisan": True}
POSTS = [{"text": text, "label_text": "sci.med", "label": 1} for text in ("kept", "", None)]
RESTAURANTS = [{"meaning_representation": "name[A]", "human_reference": text} for text in ("One.", "Two.")]
HOP = ("q", ("here", "there"), 1)
COPIES = {  # rows, the request, what is looked at of the examples, and what it is
    "conll2003": (
        *([{"tokens": ["Rome"], "ner_tags": ["B-LOC"]}], (("lukasgarbas/conll-03", None), {})),
        *(("words", "tags"), [(("Rome",), ("B-LOC",))]),
    ),
    "wnut17": (
        datasets.Dataset.from_dict({"tokens": [["Ada", "L."], []], "ner_tags": [[1, 2], []]}, features=WORDS),
        *((("leondz/wnut_17",), PARQUET), ("words", "tags"), [(("Ada", "L."), ("B-person", "I-person"))]),
    ),
    "squality": (
        *([STORY], (("pszemraj/SQuALITY-v1.3", None), {})),
        *(("source", "references"), [("What?\n\nStory.", ("One.", "Two."))]),
    ),
    "coqa": (
        *([TALK], (("stanfordnlp/coqa", None), {}), ("id", "source", "references")),
        [
            ("0/1", "<bos_qa> <document> S. <question> Q1?", ("a1",)),
            ("0/2", "<bos_qa> <document> S. <question> Q1? <answer> a1 <question> Q2?", ("a2",)),
        ],
    ),
    "e2e": (
        *(RESTAURANTS, (("tuetschek/e2e_nlg",), PARQUET)),
        *(("source", "references"), [("name[A]", ("One.", "Two."))]),
    ),
    **{
        task: ([ITEM], (("community-datasets/qangaroo", config), {}), ("id", "candidates", "answer"), [HOP])
        for task, config in (("wikihop", "wikihop"), ("wikihop-masked", "masked_wikihop"))
    },
    "hyperpartisan": (
        *([ARTICLE], (("hyperpartisan_news_detection", "byarticle"), {})),
        *(("text", "label"), [("Title\nBody no. here End", "hyperpartisan")]),
    ),
    "20newsgroups": (POSTS, (("SetFit/20_newsgroups", None), {}), ("text", "label"), [("kept", "sci.med")]),
}


@pytest.fixture
def copy(monkeypatch):
    """Answer every request with these rows; requests are recorded."""

    def answer(rows):
        asked = []
        table = rows if isinstance(rows, datasets.Dataset) else datasets.Dataset.from_list(rows)

        def load_dataset(*name, **place):
            asked.append((name, place))
            return datasets.DatasetDict({"train": table, "validation": table, "test": table})

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return answer


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_what_the_raw_data_are(copy, caplog, name):
    rows, request, attributes, expected = COPIES[name]
    asked = copy(rows)
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        corpus = TASKS[name].read_hub(OPTIONS)
    assert asked == [request]
    assert [attrgetter(*attributes)(one) for one in corpus.splits["train"]] == expected
    assert ("lacks the additional answers" in caplog.text) == (name == "coqa")


def test_what_a_copy_cannot_serve_is_refused(copy):
    copy([ARTICLE])
    for values in ({"task": "hyperpartisan", "split": "longformer"}, {"task": "20newsgroups", "remove": ["quotes"]}):
        with pytest.raises(ConfigError, match="set path to"):
            TASKS[values["task"]].read_hub(DataOptions(**values))
    copy([{"tokens": ["a"], "ner_tags": []}])
    with pytest.raises(DataError, match="row 1: 1 tokens but 0 ner_tags"):
        TASKS["conll2003"].read_hub(OPTIONS)
    with pytest.raises(DataError, match=r"\[train\]: no column 'query'"):
        TASKS["wikihop"].read_hub(OPTIONS)


def test_a_hub_that_fails_is_one_line(monkeypatch):
    def load_dataset(*_, **__):
        raise ValueError("no\nroute")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"'leondz/wnut_17' .* was not loaded \(ValueError: no route\)"):
        TASKS["wnut17"].read_hub(OPTIONS)
