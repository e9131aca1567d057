"""The copies of built-in tasks on the hub: what is asked for, and what becomes of rows made here."""

import logging
from operator import attrgetter

import datasets
import pytest

from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import ConfigError, DataError

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
def hub(monkeypatch):
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
def test_a_copy_is_what_the_raw_data_are(hub, caplog, name):
    rows, request, attributes, expected = COPIES[name]
    asked = hub(rows)
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        corpus = TASKS[name].read_hub(OPTIONS)
    assert asked == [request]
    assert [attrgetter(*attributes)(one) for one in corpus.splits["train"]] == expected
    assert ("lacks the additional answers" in caplog.text) == (name == "coqa")


def test_what_a_copy_cannot_serve_is_refused(hub):
    hub([ARTICLE])
    for values in ({"task": "hyperpartisan", "split": "longformer"}, {"task": "20newsgroups", "remove": ["quotes"]}):
        with pytest.raises(ConfigError, match="set path to"):
            TASKS[values["task"]].read_hub(DataOptions(**values))
    hub([{"tokens": ["a"], "ner_tags": []}])
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
