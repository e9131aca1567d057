"""SuperGLUE: small files in the official layout, the hub copies, and the real data where they are at hand."""

import json
from collections import Counter
from pathlib import Path

import datasets
import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

RAW = Path(__file__).resolve().parents[4] / "shared" / "data" / "superglue"
SPLITS = ("train", "validation", "test")


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")


def made(folder, record, train=20, dev=4):
    """Write train.jsonl and val.jsonl of ``record(split, number)``."""
    for split, count in (("train", train), ("val", dev)):
        write(folder / f"{split}.jsonl", [record(split, i) for i in range(count)])
    return folder


def from_task(task, folder, **options):
    return load_data(DataOptions(task=task, path=str(folder), **options))


def sizes(loaded):
    return [len(loaded.splits[split]) for split in SPLITS]


def boolq(split, i):
    return {"question": f"is {split} {i}", "passage": f"Passage {i}", "idx": i, "label": i % 2 == 0}


def copa(split, i):
    question = ("cause", "effect")[i % 2]
    return {"premise": f"{split} {i}.", "choice1": "A.", "choice2": "B.", "question": question, "label": i // 2 % 2}


def wic(split, i):
    return {"word": "place", "sentence1": f"{split} {i} places", "sentence2": "no place", "label": i % 2 == 1}


def rte(split, i):
    return {"premise": f"{split} {i}", "hypothesis": "h", "label": ("entailment", "not_entailment")[i % 2]}


def cb(split, i):
    label = ("entailment", "contradiction", "neutral")[i % 3]
    return {"premise": f"{split} {i}", "hypothesis": "h", "label": label}


def wsc(split, i, index=3):
    target = {"span1_text": "Mark", "span1_index": 0, "span2_text": "he", "span2_index": index}
    return {"text": f"Mark said that he, {split} {i}, knows what he knows.", "target": target, "label": i % 2 == 1}


def multirc(split, i):
    def answers(question):
        return [{"text": f"answer {k}", "idx": 10 * question + k, "label": k % 2} for k in range(3)]

    questions = [{"question": f"what {q}?", "idx": q, "answers": answers(q)} for q in (2 * i, 2 * i + 1)]
    return {"idx": i, "passage": {"text": f"{split} paragraph {i}", "questions": questions}}


def test_the_question_of_copa_follows_the_premise(tmp_path):
    data = from_task("copa", made(tmp_path, copa))
    assert data.problem == "multiple-choice"
    assert data.splits["test"]["text"][:] == ["val 0. because", "val 1. so", "val 2. because", "val 3. so"]
    assert data.splits["test"]["label"][:] == [0, 0, 1, 1]
    assert data.splits["test"][0]["choices"] == ["A.", "B."]


def test_the_word_of_wic_stands_before_both_sentences(tmp_path):
    row = from_task("wic", made(tmp_path, wic)).splits["test"][1]
    assert (row["text"], row["text_pair"], row["label"]) == ("place: val 1 places", "place: no place", 1)


def test_wic_may_be_asked_as_a_question(tmp_path):
    row = from_task("wic-question", made(tmp_path, wic)).splits["test"][1]
    asked = "val 1 places no place Does place have the same meaning in both sentences?"
    assert (row["text"], "text_pair" in row, row["label"]) == (asked, False, 1)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (3, "Mark said that *he*, val 0, knows what he knows."),
        (8, "Mark said that he, val 0, knows what *he* knows."),
        (9, "Mark said that he, val 0, knows what *he* knows."),  # off by one, as one published index is
    ],
)
def test_the_pronoun_of_wsc_is_marked(tmp_path, index, text):
    data = from_task("wsc", made(tmp_path, lambda split, i: wsc(split, i, index)))
    assert data.splits["test"][0]["text"] == text
    assert data.splits["test"][0]["text_pair"] == "Mark"


def test_multirc_has_a_row_per_answer_and_a_group_per_question(tmp_path):
    data = from_task("multirc", made(tmp_path, multirc), validation_fraction=0.2)
    assert data.grouped
    assert sizes(data) == [96, 24, 24]
    row = data.splits["test"][4]
    assert (row["text"], row["text_pair"], row["label"]) == ("val paragraph 0", "what 1? answer 1", 1)
    assert Counter(Counter(data.splits["test"]["group"]).values()) == {3: 8}
    paragraphs = [set(data.splits[split]["text"]) for split in SPLITS]
    assert not paragraphs[0] & paragraphs[1]


def test_a_subsample_of_multirc_has_whole_questions(tmp_path):
    made(tmp_path, multirc)
    small = from_task("multirc", tmp_path, max_train=20)
    large = from_task("multirc", tmp_path, max_train=40)
    assert Counter(Counter(small.splits["train"]["group"]).values()) == {3: 6}
    assert set(small.splits["train"]["id"]) < set(large.splits["train"]["id"])


@pytest.mark.parametrize(
    ("task", "record", "change", "said"),
    [
        (
            "boolq",
            boolq,
            {"label": None},
            r"train\.jsonl:3: column 'label' holds None, expected one of 'false', 'true'",
        ),
        ("copa", copa, {"question": "why"}, r"train\.jsonl:3: question 'why', expected one of cause, effect"),
        ("wic", wic, {"sentence1": 7}, r"train\.jsonl:3: column 'sentence1' holds int, expected text"),
        ("multirc", multirc, {"passage": {"text": "t"}}, r"train\.jsonl:3: no column 'questions'"),
        ("wsc", wsc, {"target": {"span1_text": "Mark"}}, r"train\.jsonl:3: no column 'span2_text'"),
    ],
)
def test_a_malformed_record_is_named(tmp_path, task, record, change, said):
    made(tmp_path, lambda split, i: record(split, i) | (change if i == 2 else {}))
    with pytest.raises(DataError, match=said):
        from_task(task, tmp_path)


@pytest.fixture
def hub(monkeypatch):
    """Answer for the hub with tables of the records, whose labels are class numbers there."""

    def answer(record, names):
        tables = {}
        for split, count in (("train", 20), ("validation", 4)):
            rows = [record(split, i) for i in range(count)]
            table = datasets.Dataset.from_list(rows)
            tables[split] = table.cast_column("label", datasets.ClassLabel(names=names)) if names else table
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: tables)

    return answer


def test_hub_copies_have_class_numbers(hub):
    hub(lambda split, i: boolq(split, i) | {"label": int(i % 2 == 0)}, ["False", "True"])
    assert from_task("boolq", "hub").splits["test"]["label"][:] == [1, 0, 1, 0]
    hub(lambda split, i: rte(split, i) | {"label": i % 2}, ["entailment", "not_entailment"])
    assert from_task("superglue-rte", "hub").splits["test"]["label"][:] == [1, 0, 1, 0]
    hub(lambda split, i: cb(split, i) | {"label": i % 3}, ["entailment", "contradiction", "neutral"])
    assert from_task("cb", "hub").splits["test"]["label"][:] == [0, 1, 2, 0]
    hub(copa, ["choice1", "choice2"])
    assert from_task("copa", "hub").splits["test"]["label"][:] == [0, 0, 1, 1]


def test_hub_copies_that_are_flat(hub, tmp_path):
    def flat_wsc(split, i):
        record = wsc(split, i)
        return {"text": record["text"], **record["target"], "label": int(record["label"])}

    hub(flat_wsc, ["False", "True"])
    assert (
        from_task("wsc", "hub").splits["test"][1]["text"] == "Mark said that *he*, validation 1, knows what he knows."
    )
    assert from_task("wsc", "hub").splits["test"]["label"][:] == [0, 1, 0, 1]

    def flat_multirc(split, i):
        idx = {"paragraph": i // 4, "question": i // 2, "answer": i}
        return {"paragraph": f"{split} {i // 4}", "question": "q?", "answer": f"a {i}", "idx": idx, "label": i % 2}

    hub(flat_multirc, ["False", "True"])
    data = from_task("multirc", "hub")
    assert data.splits["test"]["group"][:] == ["0/0", "0/0", "0/1", "0/1"]
    assert data.splits["test"][3]["text_pair"] == "q? a 3"
    assert sizes(data) == [16, 4, 4]


HERE = [
    name
    for name in ("copa", "superglue-rte", "wic", "wic-question", "wsc", "cb", "multirc")
    if (RAW.parent / TASKS[name].place).is_dir()
]


@pytest.mark.skipif(not HERE, reason="the SuperGLUE data are not beside the repository")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "multirc" else ()) for name in HERE]
)
def test_the_real_data_have_the_sizes_that_the_table_says(name):
    data = from_task(name, RAW.parent / TASKS[name].place)
    assert " / ".join(f"{len(data.splits[split]):,}" for split in SPLITS) == TASKS[name].sizes


@pytest.mark.skipif("multirc" not in HERE, reason="the SuperGLUE data are not beside the repository")
def test_real_counts_of_labels_and_questions():
    multirc = TASKS["multirc"].read_raw(RAW / "MultiRC", DataOptions(task="multirc", split="official")).splits
    assert Counter(row.label for row in multirc["train"]) == {"false": 15218, "true": 12025}
    assert len({row.group for row in multirc["train"]}) == 5131
    assert len({row.group for row in multirc["test"]}) == 953
    wsc = from_task("wsc", RAW / "WSC", split="official").splits
    assert Counter(wsc["train"]["label"]) == {0: 295, 1: 259}
    assert all(text.count("*") == 2 for text in [*wsc["train"]["text"], *wsc["test"]["text"]])
    cb = from_task("cb", RAW / "CB", split="official").splits
    assert Counter(cb["train"]["label"]) == {0: 115, 1: 119, 2: 16}
