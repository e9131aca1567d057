"""ArXiv-11: files made in the layouts of the hub's repository."""

import json

import datasets
import pytest

from foretoken.data.options import DataOptions
from foretoken.data.tasks.arxiv import LABELS
from foretoken.errors import DataError

from support.data import load

SPLITS = ("train", "validation", "test")
COUNTS = {"train": 22, "validation": 11, "test": 11}
FILES = {"train": "train_data.txt", "validation": "val_data.txt", "test": "test_data.txt"}


def paper(split, i):
    return {"text": f"arXiv:{i} [{LABELS[i % 11]}] {split}\n\nAs in cs.CV and math.STAT", "label": LABELS[i % 11]}


def papers(split):
    return [paper(split, i) for i in range(COUNTS[split])]


@pytest.fixture
def folder(tmp_path):
    for split, name in FILES.items():
        (tmp_path / name).write_text("\n".join(map(json.dumps, papers(split))) + "\n")
    return tmp_path


def check(data):
    assert data["train"].features["label"].names == list(LABELS)
    assert [len(data[split]) for split in SPLITS] == list(COUNTS.values())
    assert data["test"]["label"][:] == list(range(11))
    assert data["test"][2]["text"] == "arXiv:2 [] test\n\nAs in  and AT"  # as the hub's no_ref cuts it


def test_the_published_files(folder):
    check(load(DataOptions(task="arxiv", path=str(folder))))


def test_parquet_folders_and_the_hub(tmp_path, monkeypatch):
    label = datasets.ClassLabel(names=list(LABELS))
    tables = {split: datasets.Dataset.from_list(papers(split)).cast_column("label", label) for split in SPLITS}
    (tmp_path / "no_ref").mkdir()
    tables["train"].select(range(11)).to_parquet(tmp_path / "no_ref" / "train-00000-of-00002.parquet")
    tables["train"].select(range(11, 22)).to_parquet(tmp_path / "no_ref" / "train-00001-of-00002.parquet")
    for split in SPLITS[1:]:
        tables[split].to_parquet(tmp_path / "no_ref" / f"{split}-00000-of-00001.parquet")
    check(load(DataOptions(task="arxiv", path=str(tmp_path))))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: tables)
    check(load(DataOptions(task="arxiv", path="hub")))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "t", "label": "cs.XX"}', r"val_data\.txt:2: label 'cs\.XX' is no subject"),
        ('{"text": "t"}', r"val_data\.txt:2: no column 'label'"),
        ("{", r"val_data\.txt:2:2: malformed JSON"),
        ('{"text": "cs.AI", "label": "cs.AI"}', r"val_data\.txt:2: the document is empty"),
    ],
)
def test_a_malformed_record_is_named(folder, line, said):
    (folder / "val_data.txt").write_text(json.dumps(paper("validation", 0)) + "\n" + line)
    with pytest.raises(DataError, match=said):
        load(DataOptions(task="arxiv", path=str(folder)))
