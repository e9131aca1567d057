"""GLUE: small files in the official layout, the hub copies, and the real data where they are at hand."""

import csv
import logging
from collections import Counter
from pathlib import Path

import datasets
import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

from support.data import load

RAW = Path(__file__).resolve().parents[4] / "shared" / "data" / "glue"
SPLITS = ("train", "validation", "test")
QUOTE = "He said : \" the 'end' is near"  # a lone double quote, which csv quoting would run on from

MNLI = [
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse"),
    *("sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "label1"),
]
QQP = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
PAIRS = ["index", "sentence1", "sentence2", "label"]
NLI = ("entailment", "neutral", "contradiction")


def write(path, header, rows, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in ([header] if header else []) + list(rows)]
    path.write_text(end.join([*lines, ""]), encoding="utf-8")
    return path


def rte(folder, train=40, dev=6):
    for name, count in (("train", train), ("dev", dev)):
        rows = [
            (i, f"{name} premise {i}", f"{QUOTE} {i}", ("entailment", "not_entailment")[i % 2]) for i in range(count)
        ]
        write(folder / f"{name}.tsv", PAIRS, rows)
    return folder


def from_task(task, folder, **options):
    return load_data(DataOptions(task=task, path=str(folder), **options))


def sizes(loaded):
    return [len(loaded.splits[split]) for split in SPLITS]


def test_dev_is_the_test_and_validation_comes_from_train(tmp_path):
    data = from_task("rte", rte(tmp_path))
    assert sizes(data) == [36, 4, 6]
    assert data.labels == ["not_entailment", "entailment"]
    assert Counter(data.splits["validation"]["label"]) == {0: 2, 1: 2}
    row = data.splits["test"][1]
    assert (row["text"], row["text_pair"], row["label"]) == ("dev premise 1", f"{QUOTE} 1", 0)
    assert all(text.startswith("train") for split in SPLITS[:2] for text in data.splits[split]["text"])


def test_the_official_split_is_dev_twice_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="foretoken.data"):
        data = from_task("rte", rte(tmp_path), split="official")
    assert sizes(data) == [40, 6, 6]
    assert data.splits["validation"]["text"] == data.splits["test"]["text"]
    assert len({i for split in SPLITS for i in data.splits[split]["id"]}) == 52
    [warning] = [record.getMessage() for record in caplog.records]
    assert "rte: split 'official' selects on the official dev set and reports it too" in warning


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("7\tonly a premise\tentailment", r"train\.tsv:41: the row has 3 fields, expected 4 \(index, sentence1, sent"),
        ("7\ta\tb\tmaybe", r"train\.tsv:41: column 'label' holds 'maybe', expected one of 'not_entailment', 'entailm"),
        ("7\ta\tb\t", r"train\.tsv:41: column 'label' holds '', expected one of"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, line, said):
    rte(tmp_path)
    lines = (tmp_path / "train.tsv").read_text().split("\n")
    (tmp_path / "train.tsv").write_text("\n".join([*lines[:40], line, *lines[41:]]))
    with pytest.raises(DataError, match=said):
        from_task("rte", tmp_path)


def test_missing_files_and_columns(tmp_path):
    rte(tmp_path)
    write(tmp_path / "train.tsv", ["index", "premise", "sentence2", "label"], [(0, "a", "b", "entailment")])
    with pytest.raises(DataError, match=r"train\.tsv:1: no column 'sentence1' \(did you mean 'sentence2'"):
        from_task("rte", tmp_path)
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(DataError, match=r"task 'rte' needs a file train\.tsv here, but the folder holds dev\.tsv"):
        from_task("rte", tmp_path)


def test_rows_without_text_are_left_out_and_counted(tmp_path, caplog):
    rte(tmp_path)
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("40\t \tno premise\tentailment\n")
    with caplog.at_level(logging.INFO, logger="foretoken.data"):
        assert sizes(from_task("rte", tmp_path)) == [36, 4, 6]
    assert "left out 1 of 41 rows, whose text is empty: " in caplog.text


def test_cola_has_no_header(tmp_path):
    for name in ("train", "dev"):
        rows = [("gj04", i % 2, "" if i % 2 else "*", f"{name} sentence {i}") for i in range(20)]
        write(tmp_path / f"{name}.tsv", None, rows)
    data = from_task("cola", tmp_path)
    assert sizes(data) == [18, 2, 20]
    assert data.splits["test"][:2]["text"] == ["dev sentence 0", "dev sentence 1"]
    assert data.splits["test"]["label"][:2] == [0, 1]
    assert data.labels == ["unacceptable", "acceptable"]


def mrpc_rows(count, first=0):
    return [(i % 2, 1000 + i, 2000 + i, f"one {i} {QUOTE}", f"other {i}") for i in range(first, first + count)]


def test_mrpc_is_split_by_the_ids_of_the_dev_set(tmp_path):
    header = ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    write(tmp_path / "msr_paraphrase_train.txt", header, mrpc_rows(20))
    write(tmp_path / "msr_paraphrase_test.txt", header, mrpc_rows(5, 30))
    write(tmp_path / "dev_ids.tsv", None, [(1003, 2003), (1004, 2004), (1005, 9999)])
    data = from_task("mrpc", tmp_path)
    assert sizes(data) == [18, 2, 5]
    assert data.splits["validation"]["text_pair"][:] == ["other 3", "other 4"]
    assert data.splits["test"]["label"][:] == [0, 1, 0, 1, 0]
    assert sizes(from_task("mrpc", tmp_path, split="official")) == [18, 2, 2]
    (tmp_path / "dev_ids.tsv").unlink()
    with pytest.raises(DataError, match=r"needs a file dev_ids\.tsv here"):
        from_task("mrpc", tmp_path)


def stsb_rows(count, extra=()):
    return [("main-news", "f", "2012", i, f"{i % 6}.250", f"one {i}", f"other {i}", *extra) for i in range(count)]


def test_stsb_is_a_regression_with_test_scores(tmp_path):
    write(tmp_path / "original" / "sts-train.tsv", None, [*stsb_rows(10), *stsb_rows(2, ("http://a", "http://b"))])
    write(tmp_path / "original" / "sts-dev.tsv", None, stsb_rows(4))
    write(tmp_path / "original" / "sts-test.tsv", None, stsb_rows(3))
    data = from_task("stsb", tmp_path)
    assert data.problem == "regression"
    assert data.labels == []
    assert sizes(data) == [12, 4, 3]
    assert data.splits["test"]["label"][:] == [0.25, 1.25, 2.25]
    assert data.splits["test"][2]["text_pair"] == "other 2"
    rows = [*stsb_rows(3), ("main-news", "f", "2012", "9", "high", "a", "b")]
    write(tmp_path / "original" / "sts-test.tsv", None, rows)
    with pytest.raises(DataError, match=r"sts-test\.tsv:4: column 'score' holds 'high', expected a number"):
        from_task("stsb", tmp_path)


def mnli(folder):
    def rows(name, count, annotators):
        for i in range(count):
            parses = ["(a)"] * 4
            labels = [NLI[i % 3]] * (annotators + 1)
            yield (i, i // 3, f"{i}e", "fiction", *parses, f"{name} {i // 3}", f"hypothesis {i}", *labels)

    write(folder / "train.tsv", [*MNLI, "gold_label"], rows("train", 90, 1))
    for part, count in (("matched", 6), ("mismatched", 3)):
        header = [*MNLI, "label2", "label3", "label4", "label5", "gold_label"]
        write(folder / f"dev_{part}.tsv", header, rows(part, count, 5))


def test_mnli_has_two_parts_and_keeps_the_pairs_of_a_premise_together(tmp_path):
    mnli(tmp_path)
    data = from_task("mnli", tmp_path)
    assert data.labels == list(NLI)
    assert Counter(data.splits["test"]["part"]) == {"matched": 6, "mismatched": 3}
    assert len(set(data.splits["test"]["id"])) == 9
    premises = [set(data.splits[split]["text"]) for split in SPLITS[:2]]
    assert not premises[0] & premises[1]
    assert sizes(data)[1] == 9  # three premises of three pairs
    official = from_task("mnli", tmp_path, split="official")
    assert Counter(official.splits["validation"]["part"]) == {"matched": 6, "mismatched": 3}


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path, caplog):
    rows = [(i, i, i, f"a {i} ?", f"b {i} ?", i % 2) for i in range(20)]
    write(tmp_path / "train.tsv", QQP, [*rows, (20, 1, 2, "a question that a line break cut")])
    write(tmp_path / "dev.tsv", QQP, rows[:4])
    with caplog.at_level(logging.INFO, logger="foretoken.data"):
        data = from_task("qqp", tmp_path)
    assert sizes(data) == [18, 2, 4]
    assert data.labels == ["not_duplicate", "duplicate"]
    assert "train.tsv: left out 1 of 21 rows, which are broken in the published file" in caplog.text


def hub_table(count, label, **texts):
    columns = {name: [f"{prefix} {i}" for i in range(count)] for name, prefix in texts.items()}
    features = datasets.Features({name: datasets.Value("string") for name in texts} | {"label": label})
    value = (lambda i: i / 4) if isinstance(label, datasets.Value) else (lambda i: i % len(label.names))
    return datasets.Dataset.from_dict(columns | {"label": [value(i) for i in range(count)]}, features=features)


@pytest.fixture
def hub(monkeypatch):
    answers = {}
    monkeypatch.setattr(
        datasets, "load_dataset", lambda name, config=None, data_dir=None, **_: answers[(name, config or data_dir)]
    )
    return answers


def unlabelled(table):
    return table.cast_column("label", datasets.Value("int64")).map(lambda row: {"label": -1})


def test_the_hub_copy_of_rte_has_its_classes_the_other_way_round(hub):
    label = datasets.ClassLabel(names=["entailment", "not_entailment"])
    tables = {
        "train": hub_table(40, label, sentence1="a", sentence2="b"),
        "validation": hub_table(6, label, sentence1="v", sentence2="w"),
    }
    tables["test"] = unlabelled(hub_table(4, label, sentence1="t", sentence2="u"))
    hub[("nyu-mll/glue", "rte")] = tables
    data = from_task("rte", "hub")
    assert data.labels == ["not_entailment", "entailment"]
    assert sizes(data) == [36, 4, 6]
    assert data.splits["test"]["label"][:] == [1, 0, 1, 0, 1, 0]
    assert data.splits["test"][0]["text_pair"] == "w 0"


def test_the_hub_copy_of_mnli_has_its_parts_in_configurations(hub):
    label = datasets.ClassLabel(names=list(NLI))
    hub[("nyu-mll/glue", "mnli")] = {
        "train": hub_table(60, label, premise="p", hypothesis="h"),
        "validation_matched": hub_table(6, label, premise="p", hypothesis="h"),
    }
    for part, count in (("matched", 6), ("mismatched", 3)):
        hub[("nyu-mll/glue", f"mnli_{part}")] = {"validation": hub_table(count, label, premise=part, hypothesis="h")}
    data = from_task("mnli", "hub")
    assert Counter(data.splits["test"]["part"]) == {"matched": 6, "mismatched": 3}
    assert data.splits["test"][0]["text"] == "matched 0"
    assert data.splits["test"]["label"][:] == [0, 1, 2] * 3


def test_the_hub_copies_of_mrpc_and_stsb(hub):
    label = datasets.ClassLabel(names=["not_equivalent", "equivalent"])
    made = {split: hub_table(20, label, sentence1=split, sentence2="b") for split in SPLITS}
    hub[("nyu-mll/glue", "mrpc")] = made
    assert sizes(from_task("mrpc", "hub")) == [20, 20, 20]
    assert from_task("mrpc", "hub").splits["test"][0]["text"] == "test 0"
    number = datasets.Value("float32")
    tables = {split: hub_table(20, number, sentence1=split, sentence2="b") for split in SPLITS}
    tables["test"] = tables["test"].map(lambda row: {"label": -1.0})
    hub[("nyu-mll/glue", "stsb")] = tables
    data = from_task("stsb", "hub")
    assert sizes(data) == [18, 2, 20]
    assert data.splits["test"]["label"][:3] == [0.0, 0.25, 0.5]


NAMES = ("cola", "sst2", "mrpc", "stsb", "rte", "wnli")
HERE = [name for name in NAMES if (RAW.parent / TASKS[name].place).is_dir()]


@pytest.mark.skipif(not HERE, reason="the GLUE data are not beside the repository")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "sst2" else ()) for name in HERE]
)
def test_the_real_data_have_the_sizes_that_the_table_says(name):
    data = load(DataOptions(task=name, path=str(RAW.parent / TASKS[name].place)))
    assert " / ".join(f"{len(data[split]):,}" for split in SPLITS) == TASKS[name].sizes


@pytest.mark.skipif("cola" not in HERE, reason="the GLUE data are not beside the repository")
def test_real_counts_of_labels():
    cola = load(DataOptions(task="cola", path=str(RAW / "CoLA"), split="official"))
    assert Counter(cola["train"]["label"]) == {1: 6023, 0: 2528}
    assert Counter(cola["test"]["label"]) == {1: 721, 0: 322}
    mrpc = load(DataOptions(task="mrpc", path=str(RAW / "MRPC")))
    assert [Counter(mrpc[split]["label"])[1] for split in SPLITS] == [2474, 279, 1147]
    stsb = load(DataOptions(task="stsb", path=str(RAW / "STS-B")))
    assert sum(stsb["test"]["label"]) / 1379 == pytest.approx(2.608, abs=0.001)
    with (RAW / "STS-B" / "dev.tsv").open(newline="", encoding="utf-8") as file:  # the same pairs, by another reader
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert stsb["validation"]["text_pair"][:] == [row["sentence2"] for row in rows]
