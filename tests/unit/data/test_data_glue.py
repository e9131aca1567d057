"""GLUE and SuperGLUE: small files in the official layout, the hub copies, and the real data where they are at hand."""

import csv
import json
import logging
import os
from collections import Counter
from pathlib import Path

import datasets
import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

RAW = Path(os.environ.get("FORETOKEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
SPLITS = ("train", "validation", "test")
QUOTE = "He said : \" the 'end' is near"  # a lone double quote, which csv quoting would run on from
NLI = ("entailment", "neutral", "contradiction")
MNLI = "index promptID pairID genre parse parse2 parse3 parse4 sentence1 sentence2 label1"


def tsv(path, header, rows):
    """Write a table whose columns the header names; without one if it is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "\t".join(map(str, row))
        for row in ([header.split("\t" if "\t" in header else " ")] if header else []) + list(rows)
    ]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def rte(folder):
    for name, count in (("train", 40), ("dev", 6)):
        rows = [
            (i, f"{name} premise {i}", f"{QUOTE} {i}", ("entailment", "not_entailment")[i % 2]) for i in range(count)
        ]
        tsv(folder / f"{name}.tsv", "index sentence1 sentence2 label", rows)
    return folder


def cola(folder):
    for name in ("train", "dev"):
        rows = [("gj04", i % 2, "" if i % 2 else "*", f"{name} sentence {i}") for i in range(20)]
        tsv(folder / f"{name}.tsv", "", rows)


def mrpc(folder):
    for name, numbers in (("train", range(20)), ("test", range(30, 35))):
        rows = [(i % 2, 1000 + i, 2000 + i, f"one {i} {QUOTE}", f"other {i}") for i in numbers]
        tsv(folder / f"msr_paraphrase_{name}.txt", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", rows)
    tsv(folder / "dev_ids.tsv", "", [(1003, 2003), (1004, 2004), (1005, 9999)])


def stsb(folder):
    for name, count in (("train", 12), ("dev", 4), ("test", 3)):
        rows = [("news", "f", "2012", i, f"{i % 6}.250", f"one {i}", f"other {i}") for i in range(count)]
        extra = [(*rows[0], "http://a", "http://b")] if name == "train" else []  # as the published files have them
        tsv(folder / "original" / f"sts-{name}.tsv", "", rows + extra)


def mnli(folder):
    def write(name, count, annotators):
        header = " ".join([MNLI, *(f"label{n}" for n in range(2, annotators + 1)), "gold_label"])
        rows = [
            (i, i // 3, "e", "fiction", *"abcd", f"{name} {i // 3}", f"h {i}", *[NLI[i % 3]] * (annotators + 1))
            for i in range(count)
        ]
        tsv(folder / f"{name}.tsv", header, rows)

    write("train", 90, 1)
    write("dev_matched", 6, 5)
    write("dev_mismatched", 3, 5)


def qqp(folder):
    rows = [(i, i, i, f"a {i} ?", f"b {i} ?", i % 2) for i in range(20)]
    header = "id qid1 qid2 question1 question2 is_duplicate"
    tsv(folder / "train.tsv", header, [*rows, (20, 1, 2, "a question that a line break cut")])
    tsv(folder / "dev.tsv", header, rows[:4])


def boolq(split, i):
    return {"question": f"is {split} {i}", "passage": f"Passage {i}", "idx": i, "label": i % 2 == 0}


def copa(split, i):
    question = ("cause", "effect")[i % 2]
    return {"premise": f"{split} {i}.", "choice1": "A.", "choice2": "B.", "question": question, "label": i // 2 % 2}


def wic(split, i):
    return {"word": "place", "sentence1": f"{split} {i} places", "sentence2": "no place", "label": i % 2 == 1}


def nli(split, i):
    return {"premise": f"{split} {i}", "hypothesis": "h"}


def wsc(split, i, index=3):
    target = {"span1_text": "Mark", "span1_index": 0, "span2_text": "he", "span2_index": index}
    return {"text": f"Mark said that he, {split} {i}, knows what he knows.", "target": target, "label": i % 2 == 1}


def multirc(split, i):
    def answers(question):
        return [{"text": f"answer {k}", "idx": 10 * question + k, "label": k % 2} for k in range(3)]

    questions = [{"question": f"what {q}?", "idx": q, "answers": answers(q)} for q in (2 * i, 2 * i + 1)]
    return {"idx": i, "passage": {"text": f"{split} paragraph {i}", "questions": questions}}


def made(folder, record):
    """Write train.jsonl and val.jsonl of ``record(split, number)``."""
    for split, count in (("train", 20), ("val", 4)):
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(record(split, i)) for i in range(count)) + "\n")


def load(task, folder, **options):
    return load_data(DataOptions(task=task, path=str(folder), **options))


def sizes(loaded):
    return [len(loaded.splits[split]) for split in SPLITS]


ROWS = [  # task, what writes it, sizes, number of a test row, and that row
    ("rte", rte, [36, 4, 6], 1, {"text": "dev premise 1", "text_pair": f"{QUOTE} 1", "label": "not_entailment"}),
    ("cola", cola, [18, 2, 20], 1, {"text": "dev sentence 1", "label": "acceptable"}),
    ("mrpc", mrpc, [18, 2, 5], 3, {"text": f"one 33 {QUOTE}", "text_pair": "other 33", "label": "equivalent"}),
    ("stsb", stsb, [13, 4, 3], 2, {"text": "one 2", "text_pair": "other 2", "label": 2.25}),
    ("qqp", qqp, [18, 2, 4], 3, {"text": "a 3 ?", "text_pair": "b 3 ?", "label": "duplicate"}),
    ("mnli", mnli, [81, 9, 9], 7, {"text": "dev_mismatched 0", "label": "neutral", "part": "mismatched"}),
    ("boolq", boolq, [18, 2, 4], 0, {"text": "is val 0", "text_pair": "Passage 0", "label": "true"}),
    ("copa", copa, [18, 2, 4], 2, {"text": "val 2. because", "choices": ["A.", "B."], "label": 1}),
    ("copa", copa, [18, 2, 4], 1, {"text": "val 1. so", "label": 0}),
    ("wic", wic, [18, 2, 4], 1, {"text": "place: val 1 places", "text_pair": "place: no place", "label": "true"}),
    (
        *("wic-question", wic, [18, 2, 4], 1),
        {"text": "val 1 places no place Does place have the same meaning in both sentences?", "label": "true"},
    ),
    (
        "multirc",
        multirc,
        [108, 12, 24],
        4,
        {"text": "val paragraph 0", "text_pair": "what 1? answer 1", "group": "0/1"},
    ),
]


@pytest.mark.parametrize(("task", "write", "count", "number", "row"), ROWS)
def test_a_folder_becomes_three_splits(tmp_path, caplog, task, write, count, number, row):
    caplog.set_level(logging.INFO, logger="foretoken.data")
    write(tmp_path) if TASKS[task].hub_name == "nyu-mll/glue" else made(tmp_path, write)
    data = load(task, tmp_path)
    assert sizes(data) == count
    found = data.splits["test"][number]
    named = {"label": data.labels[found["label"]]} if data.labels else {}
    assert {key: (found | named)[key] for key in row} == row
    assert len({i for split in SPLITS for i in data.splits[split]["id"]}) == sum(count)
    broken = "train.tsv: left out 1 of 21 rows, which are broken in the published file"
    assert (broken in caplog.text) == (task == "qqp")
    if task in ("mnli", "multirc"):  # a premise or paragraph is in one of them
        assert not set(data.splits["train"]["text"]) & set(data.splits["validation"]["text"])


def test_the_official_split_is_dev_twice_and_says_so(tmp_path, caplog):
    data = load("rte", rte(tmp_path), split="official")
    assert sizes(data) == [40, 6, 6]
    assert data.splits["validation"]["text"] == data.splits["test"]["text"]
    assert len({i for split in SPLITS for i in data.splits[split]["id"]}) == 52
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "rte: split 'official' selects on the official dev set and reports it too" in warning
    mrpc(tmp_path)
    assert load("mrpc", tmp_path).splits["validation"]["text_pair"][:] == ["other 3", "other 4"]
    assert sizes(load("mrpc", tmp_path, split="official")) == [18, 2, 2]
    mnli(tmp_path / "mnli")
    official = load("mnli", tmp_path / "mnli", split="official")
    assert Counter(official.splits["validation"]["part"]) == {"matched": 6, "mismatched": 3}


@pytest.mark.parametrize(
    ("task", "write", "name", "line", "said"),
    [
        ("rte", rte, "train.tsv", "7\tonly a premise\tentailment", ":41: the row has 3 fields, expected 4 (index, se"),
        ("rte", rte, "train.tsv", "7\ta\tb\tmaybe", ":41: column 'label' holds 'maybe', expected one of 'not_entail"),
        ("stsb", stsb, "original/sts-test.tsv", "n\tf\t2012\t9\thigh\ta\tb", ":3: column 'score' holds 'high', expe"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, task, write, name, line, said):
    write(tmp_path)
    lines = (tmp_path / name).read_text().split("\n")
    (tmp_path / name).write_text("\n".join([*lines[:-2], line, ""]))
    with pytest.raises(DataError) as caught:
        load(task, tmp_path)
    assert f"{tmp_path / name}{said}" in str(caught.value)


def test_missing_files_and_columns(tmp_path):
    rte(tmp_path)
    tsv(tmp_path / "train.tsv", "index premise sentence2 label", [(0, "a", "b", "entailment")])
    with pytest.raises(DataError, match=r"train\.tsv:1: no column 'sentence1' \(did you mean 'sentence2'"):
        load("rte", tmp_path)
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(DataError, match=r"task 'rte' needs a file train\.tsv here, but the folder holds dev\.tsv"):
        load("rte", tmp_path)
    mrpc(tmp_path)
    (tmp_path / "dev_ids.tsv").unlink()
    with pytest.raises(DataError, match=r"needs a file dev_ids\.tsv here"):
        load("mrpc", tmp_path)


def test_rows_without_text_are_left_out_and_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="foretoken.data")
    with (rte(tmp_path) / "train.tsv").open("a") as file:
        file.write("40\t \tno premise\tentailment\n")
    assert sizes(load("rte", tmp_path)) == [36, 4, 6]
    assert "left out 1 of 41 rows, whose text is empty: " in caplog.text


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (3, "Mark said that *he*, val 0, knows what he knows."),
        (8, "Mark said that he, val 0, knows what *he* knows."),
        (9, "Mark said that he, val 0, knows what *he* knows."),  # off by one, as one published index is
    ],
)
def test_the_pronoun_of_wsc_is_marked(tmp_path, index, text):
    made(tmp_path, lambda split, i: wsc(split, i, index))
    row = load("wsc", tmp_path).splits["test"][0]
    assert (row["text"], row["text_pair"]) == (text, "Mark")


def test_a_subsample_of_multirc_has_whole_questions(tmp_path):
    made(tmp_path, multirc)
    small, large = (load("multirc", tmp_path, max_train=number) for number in (20, 40))
    assert small.grouped
    assert Counter(Counter(small.splits["train"]["group"]).values()) == {3: 6}
    assert set(small.splits["train"]["id"]) < set(large.splits["train"]["id"])


@pytest.mark.parametrize(
    ("task", "record", "change", "said"),
    [
        ("boolq", boolq, {"label": None}, "column 'label' holds None, expected one of 'false', 'true'"),
        ("copa", copa, {"question": "why"}, "not as the task's records are published: KeyError: 'why'"),
        ("wsc", wsc, {"target": {"span1_text": "Mark"}}, "not as the task's records are published: KeyError"),
    ],
)
def test_a_malformed_record_is_named(tmp_path, task, record, change, said):
    made(tmp_path, lambda split, i: record(split, i) | (change if i == 2 else {}))
    with pytest.raises(DataError, match=rf"train\.jsonl:3: {said}"):
        load(task, tmp_path)


@pytest.fixture
def hub(monkeypatch):
    """Let the hub have tables of a row per split and number, whose labels are class numbers."""
    answers = {}

    def table(row, label, count):
        rows = [{"label": i % 2} | row(i) for i in range(count)]
        made = datasets.Dataset.from_list(rows)
        return made.cast_column("label", datasets.ClassLabel(names=label) if isinstance(label, list) else label)

    def put(row, label, name=None, **counts):
        answers[name] = {split: table(lambda i, at=split: row(at, i), label, count) for split, count in counts.items()}
        return answers[name]

    def load_dataset(_, name=None, data_dir=None, **__):
        return answers.get(name or data_dir, answers.get(None))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return put


def pair(split, i, **label):
    return {"sentence1": split, "sentence2": f"b {i}"} | label


def test_hub_copies_of_glue(hub):
    tables = hub(pair, ["entailment", "not_entailment"], train=40, validation=6, test=4)
    tables["test"] = tables["test"].cast_column("label", datasets.Value("int64")).map(lambda row: {"label": -1})
    data = load("rte", "hub")
    assert (sizes(data), data.labels) == ([36, 4, 6], ["not_entailment", "entailment"])
    assert data.splits["test"]["label"][:] == [1, 0] * 3  # its classes are the other way round there
    assert data.splits["test"][0]["text_pair"] == "b 0"
    hub(pair, ["not_equivalent", "equivalent"], train=20, validation=20, test=20)
    data = load("mrpc", "hub")
    assert (sizes(data), data.splits["test"][0]["text"]) == ([20, 20, 20], "test")
    number = datasets.Value("float32")
    tables = hub(lambda split, i: pair(split, i, label=i / 4), number, train=20, validation=20, test=20)
    tables["test"] = tables["test"].map(lambda row: {"label": -1.0})
    data = load("stsb", "hub")
    assert (sizes(data), data.splits["test"]["label"][:3]) == ([18, 2, 20], [0.0, 0.25, 0.5])


def test_the_hub_copy_of_mnli_has_its_parts_in_configurations(hub):
    def texts(split, i):
        return {"premise": f"{split} {i}", "hypothesis": "h", "label": i % 3}

    hub(texts, list(NLI), "mnli", train=60, validation_matched=6)
    for part, count in (("matched", 6), ("mismatched", 3)):
        hub(lambda _, i, of=part: texts(of, i), list(NLI), f"mnli_{part}", validation=count)
    data = load("mnli", "hub")
    assert Counter(data.splits["test"]["part"]) == {"matched": 6, "mismatched": 3}
    assert data.splits["test"][0]["text"] == "matched 0"
    assert data.splits["test"]["label"][:] == [0, 1, 2] * 3


def flat_wsc(split, i):
    record = wsc(split, i)
    return {"text": record["text"], **record["target"], "label": int(record["label"])}


def flat_multirc(split, i):
    idx = {"paragraph": i // 4, "question": i // 2, "answer": i}
    return {"paragraph": f"{split} {i // 4}", "question": "q?", "answer": f"a {i}", "idx": idx, "label": i % 2}


@pytest.mark.parametrize(
    ("task", "record", "names", "labels", "row"),
    [
        ("boolq", lambda *at: boolq(*at) | {"label": int(at[1] % 2 == 0)}, ["False", "True"], [1, 0, 1, 0], {}),
        ("superglue-rte", nli, ["entailment", "not_entailment"], [1, 0, 1, 0], {}),
        ("copa", copa, ["choice1", "choice2"], [0, 0, 1, 1], {}),
        ("wsc", flat_wsc, ["False", "True"], [0, 1, 0, 1], {"text_pair": "Mark"}),
        ("multirc", flat_multirc, ["False", "True"], [0, 1, 0, 1], {"text_pair": "q? a 3", "group": "0/1"}),
    ],
)
def test_hub_copies_of_superglue(hub, task, record, names, labels, row):
    hub(record, names, train=20, validation=4)
    test = load(task, "hub").splits["test"]
    assert test["label"][:] == labels
    assert {key: test[3][key] for key in row} == row


NAMES = [
    *("cola", "sst2", "mrpc", "stsb", "rte", "wnli", "copa"),
    *("superglue-rte", "wic", "wic-question", "wsc", "cb", "multirc"),
]
HERE = [name for name in NAMES if (RAW / TASKS[name].place).is_dir()]


@pytest.mark.skipif(not HERE, reason="the data are not at hand")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("sst2", "multirc") else ()) for name in HERE]
)
def test_the_real_data_have_the_sizes_that_the_table_says(name):
    data = load(name, RAW / TASKS[name].place)
    assert " / ".join(f"{count:,}" for count in sizes(data)) == TASKS[name].sizes


@pytest.mark.skipif(not {"cola", "multirc"} <= set(HERE), reason="the data are not at hand")
def test_real_counts_of_labels_and_questions():
    def counts(task, split="train"):
        return Counter(load(task, RAW / TASKS[task].place, split="official").splits[split]["label"])

    assert (counts("cola"), counts("cola", "test")) == ({1: 6023, 0: 2528}, {1: 721, 0: 322})
    assert counts("wsc") == {0: 295, 1: 259}
    assert counts("cb") == {0: 115, 1: 119, 2: 16}
    mrpc = load("mrpc", RAW / "glue" / "MRPC").splits
    assert [Counter(mrpc[split]["label"])[1] for split in SPLITS] == [2474, 279, 1147]
    stsb = load("stsb", RAW / "glue" / "STS-B").splits
    assert sum(stsb["test"]["label"]) / 1379 == pytest.approx(2.608, abs=0.001)
    with (RAW / "glue" / "STS-B" / "dev.tsv").open(newline="", encoding="utf-8") as file:  # by another reader
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert stsb["validation"]["text_pair"][:] == [row["sentence2"] for row in rows]
    wsc = load("wsc", RAW / "superglue" / "WSC").splits
    assert all(text.count("*") == 2 for split in SPLITS for text in wsc[split]["text"])
    multirc = (
        TASKS["multirc"].read_raw(RAW / "superglue" / "MultiRC", DataOptions(task="multirc", split="official")).splits
    )
    assert Counter(row.label for row in multirc["train"]) == {"false": 15218, "true": 12025}
    assert [len({row.group for row in multirc[split]}) for split in ("train", "test")] == [5131, 953]
