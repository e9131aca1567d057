"""What is legal in data and seldom meant is said in one line each, and nothing is changed."""

import json
import logging
from pathlib import Path

import pytest

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions


def rows_of(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def texts(count, labels=("a", "b"), word="text"):
    return [{"text": f"{word} {n}", "label": labels[n % len(labels)]} for n in range(count)]


@pytest.fixture
def said(caplog):
    """Load data, and return what was said of them (without the folder) and what was loaded."""

    def load(**options):
        with caplog.at_level(logging.INFO, logger="foretoken.data"):
            loaded = load_data(DataOptions(**options))
        folder = str(Path(options.get("path") or options["train"]).parent)
        lines = [record.getMessage().replace(folder + "/", "") for record in caplog.records]
        return [line for line in lines if "recall are of class" not in line], loaded  # that is said of any two classes

    return load


def test_nothing_is_said_of_clean_data(tmp_path, said):
    assert said(path=rows_of(tmp_path / "a.jsonl", texts(40)))[0] == []


@pytest.mark.parametrize(
    "labels", [("Ham", "ham", "spam"), ("1", "1.0", "2"), ("caf\xe9", "cafe\u0301", "b"), ("a\u200bb", "ab", "c")]
)
def test_classes_that_look_alike_are_kept_apart(tmp_path, said, labels):
    lines, data = said(path=rows_of(tmp_path / "a.jsonl", texts(60, labels)))
    assert len(data.labels) == 3
    [line] = lines
    assert line.startswith("2 of 3 classes look like another one and are kept apart: ")


def test_one_text_with_two_labels(tmp_path, said, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be shortened in the message
    rows = [*texts(40), {"text": "text  3 ", "label": "a"}, {"text": "text 5", "label": "b"}]
    rows_of(tmp_path / "a.jsonl", rows)
    lines, _ = said(path="a.jsonl")
    assert lines == [
        "1 of 33 training documents repeat the text of another",
        "texts with contradicting labels, about which no model can be right: 1, the first at a.jsonl:4, a.jsonl:41",
    ]


def test_choices_and_tags_contradict_too(tmp_path, said, caplog):
    rows = [{"text": f"q {n}", "choices": ["x", "y"], "label": n % 2} for n in range(20)]
    path = rows_of(tmp_path / "a.jsonl", [*rows, {"text": "q 0", "choices": ["x", "y"], "label": 1}])
    assert any("with contradicting labels" in line for line in said(path=path, problem="multiple-choice")[0])
    caplog.clear()
    sentences = [f"word{n} O\nAda B-PER\n" for n in range(20)] + ["word1 O\nAda O\n"]
    (tmp_path / "a.conll").write_text("\n".join(sentences))
    lines, _ = said(path=str(tmp_path / "a.conll"), problem="token-classification")
    assert any("with contradicting labels" in line for line in lines)


def test_the_same_file_as_train_and_test(tmp_path, said):
    path = rows_of(tmp_path / "a.jsonl", texts(40))
    lines, _ = said(train=path, test=path)
    assert "40 of 40" not in lines[0]  # validation was taken from train
    assert lines[0].startswith("36 of 40 test documents (90 %) are in train too, and scores on them are too good: ")
    assert lines[1].startswith("4 of 40 test documents (10 %) are in validation too")
    assert len(lines) == 2


def test_what_a_folder_holds_and_is_not_read(tmp_path, said, caplog):
    for label in ("ham", "spam"):
        (tmp_path / "d" / label).mkdir(parents=True)
        for n in range(20):
            (tmp_path / "d" / label / f"{n}{'.TXT' if n % 2 else '.txt'}").write_text(f"{label} {n}")
    lines, data = said(path=str(tmp_path / "d"))
    assert sum(map(len, data.splits.values())) == 40
    assert lines == []
    (tmp_path / "d" / "ham" / "more").mkdir()
    (tmp_path / "d" / "empty").mkdir()
    (tmp_path / "d" / "stray.txt").write_text("nobody's")
    lines, _ = said(path=str(tmp_path / "d"))
    assert lines == [
        "d: 1 not read (no .txt files): more",
        "d: 1 not read (outside the folders of labels): stray.txt",
        "d: 1 not read (folders without .txt files): empty",
    ]
    caplog.clear()
    (tmp_path / "f").mkdir()
    rows_of(tmp_path / "f" / "train.jsonl", texts(40))
    rows_of(tmp_path / "f" / "validate.jsonl", texts(4))
    lines, _ = said(path=str(tmp_path / "f"))
    assert lines == ["f: 1 not read (its name is no split): validate.jsonl"]


def test_a_saved_split_that_is_none(tmp_path, said):
    import datasets

    whole = datasets.Dataset.from_list(texts(40))
    datasets.DatasetDict({"train": whole, "unsupervised": whole}).save_to_disk(tmp_path / "s")
    assert said(path=str(tmp_path / "s"))[0] == [
        "s: not read, as they are none of train, validation, test: unsupervised"
    ]
