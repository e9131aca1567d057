"""E2E, and your own source and target files; the real zip where it is at hand."""

import csv
import os
import zipfile
from pathlib import Path

import datasets
import pytest

from foretoken.data.options import DataOptions
from foretoken.data.readers.rows import ColumnNames
from foretoken.data.readers.user_data import read_examples
from foretoken.data.tasks.table import TASKS
from foretoken.errors import DataError

RAW = Path(os.environ.get("FORETOKEN_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data") / "e2e"
NONE = DataOptions(task="pydocs")
TASK = TASKS["e2e"]
SOURCES = ColumnNames("source", "target", problem="generation")
NAMES = ("trainset.csv", "devset.csv", "testset_w_refs.csv")
ROWS = [
    ("name[Caf\u00e9], area[city, centre]", 'In "town".'),
    ("name[B]", "B is a pub."),
    ("name[Caf\u00e9], area[city, centre]", "A caf\u00e9,\nin town."),
]


def folder(path, rows=ROWS, header=("mr", "ref"), names=NAMES):
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        with (path / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
            file.write("\r\n")
    return path


def zipped(path, source):
    with zipfile.ZipFile(path, "w") as content:
        for file in sorted(source.iterdir()):
            content.write(file, f"e2e-dataset/{file.name}")
    return path


def test_references_are_grouped_by_their_meaning(tmp_path):
    first, second = TASK.read_raw(folder(tmp_path), NONE).splits["test"]
    assert first.source == "name[Caf\u00e9], area[city, centre]"
    assert first.references == ('In "town".', "A caf\u00e9,\nin town.")
    assert second.references == ("B is a pub.",)
    assert (first.where, second.where) == (f"{tmp_path / NAMES[2]}:2", f"{tmp_path / NAMES[2]}:3")


def test_a_zip_and_folders_are_the_same(tmp_path):
    expected = TASK.read_raw(folder(tmp_path / "x" / "e2e-dataset"), NONE)
    archive = zipped(tmp_path / "e2e-dataset.zip", tmp_path / "x" / "e2e-dataset")
    for path in (archive, tmp_path, tmp_path / "x"):
        corpus = TASK.read_raw(path, NONE)
        for split, examples in expected.splits.items():
            assert [(one.id, one.source, one.references) for one in corpus.splits[split]] == [
                (one.id, one.source, one.references) for one in examples
            ]
    assert TASK.read_raw(archive, NONE).splits["train"][1].where == f"{archive}:e2e-dataset/trainset.csv:3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mr,ref\na,b\nc\n", ":3: the row has 1 fields, expected 2"),
        ("", ": the header is missing, expected mr, ref"),
        ("\nMR\na\n", ":2: the header is MR, expected mr, ref"),
        ("MR\na\n", ":1: the header is MR, expected mr, ref"),
        ('mr,ref\na,"b\n', ":2: malformed row"),
        ("mr,ref\na, \n", ":2: 'ref' is empty"),
        (b"mr,ref\na,caf\xe9\n", ":2:6: byte 0xe9 is not valid UTF-8"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_malformed_row_is_named(tmp_path, text, message, packed):
    path = folder(tmp_path / "x")
    (path / "devset.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    place = zipped(tmp_path / "e2e-dataset.zip", path) if packed else path
    with pytest.raises(DataError) as caught:
        TASK.read_raw(place, NONE)
    assert f"devset.csv{message}" in str(caught.value)
    assert str(place) in str(caught.value)


def test_missing_and_damaged_files(tmp_path):
    path = folder(tmp_path / "x", names=NAMES[:2])
    with pytest.raises(DataError, match=r"x: no testset_w_refs\.csv here"):
        TASK.read_raw(path, NONE)
    with pytest.raises(DataError, match=r"a\.zip: no testset_w_refs\.csv here"):
        TASK.read_raw(zipped(tmp_path / "a.zip", path), NONE)
    (tmp_path / "b.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="the archive is damaged"):
        TASK.read_raw(tmp_path / "b.zip", NONE)


@pytest.mark.skipif(not RAW.is_dir(), reason="the raw data are not at hand")
def test_the_real_zip():
    splits = TASK.read_raw(RAW, NONE).splits
    sizes = {split: (len(items), sum(len(one.references) for one in items)) for split, items in splits.items()}
    assert sizes == {"train": (4862, 42061), "validation": (547, 4672), "test": (630, 4693)}


def test_your_own_files(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "x", "in": "a", "out": ["b", "c"]}\n{"id": "y", "in": "d", "out": "e"}\n')
    examples = read_examples(path, ColumnNames("in", "out", problem="generation"))
    assert [(one.id, one.source, one.references, one.where) for one in examples] == [
        ("x", "a", ("b", "c"), f"{path}:1"),
        ("y", "d", ("e",), f"{path}:2"),
    ]
    datasets.Dataset.from_dict({"source": ["a"], "target": [["b", "c"]]}).to_parquet(tmp_path / "mine.parquet")
    assert read_examples(tmp_path / "mine.parquet", SOURCES)[0].references == ("b", "c")
    (tmp_path / "mine.csv").write_text('source,target\na,"b, c"\n')
    assert read_examples(tmp_path / "mine.csv", SOURCES)[0].references == ("b, c",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"source": "a", "target": []}', ":1: column 'target' holds an empty list"),
        ('{"source": "a", "target": ["b", ""]}', ":1: 'target' is empty"),
        ('{"source": "a", "target": [["b"]]}', ":1: column 'target' holds list, expected text"),
        ('{"source": " ", "target": "b"}', ":1: 'source' is empty"),
        ('{"source": "a", "target": null}', ":1: column 'target' has no value"),
        ('{"source": "a", "targets": "b"}', ":1: no column 'target' (did you mean 'targets'?)"),
        ('{"id": 1, "source": "a", "target": "b"}\n' * 2, ":2: id '1' was already used at"),
        ("\n", "has no rows"),
    ],
)
def test_your_own_malformed_files(tmp_path, text, message):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_examples(path, SOURCES)
    assert f"{path}" in str(caught.value)
    assert message in str(caught.value)
