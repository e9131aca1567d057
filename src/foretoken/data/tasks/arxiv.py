"""ArXiv-11 (He et al. 2019): whole papers by subject, without the subjects' names in the text (``no_ref``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foretoken.data.documents import Document, Splits
from foretoken.data.options import DataOptions
from foretoken.data.readers.labels import documents_from_rows, names_of_labels
from foretoken.data.readers.rows import ColumnNames, UsableRow, text_value, usable
from foretoken.data.readers.tables import read_rows
from foretoken.data.tasks.base import raw_file, raw_folder
from foretoken.errors import DataError, did_you_mean

# in the order of the hub's class numbers
LABELS = ("math.AC", "cs.CV", "cs.AI", "cs.SY", "math.GR", "cs.CE", "cs.PL", "cs.IT", "cs.DS", "cs.NE", "math.ST")
_COLUMNS = ColumnNames("text", "label")
_FILES = {
    "train": ("train_data.txt", "train_data.jsonl"),
    "validation": ("val_data.txt", "val_data.jsonl"),
    "test": ("test_data.txt", "test_data.jsonl"),
}


def read(path: Path, _: DataOptions) -> Splits:
    """Return the papers of ``train_data.txt``, ``val_data.txt`` and ``test_data.txt``: a JSON object per line.

    Alternatively the folder, or ``no_ref`` in it, has parquet files ``train-*.parquet`` and so on. The texts contain
    the subjects' names, such as ``cs.AI`` in the stamp of the first page; they are removed, as in the hub's
    configuration ``no_ref``.

    Raises:
        DataError: a file is missing, or a record is not usable; the message names file and line.
    """
    return {split: _split(path, split) for split in _FILES}


def without_subjects(text: str) -> str:
    """Return a text without the names of the eleven subjects.

    >>> without_subjects("arXiv:1203.1105v1 [cs.AI] 6 Mar 2012")
    'arXiv:1203.1105v1 [] 6 Mar 2012'
    """
    for label in LABELS:
        text = text.replace(label, "")
    return text


def _split(path: Path, split: str) -> list[Document]:
    folder = raw_folder(path)
    for base in (folder / "no_ref", folder):
        shards = sorted(base.glob(f"{split}-*.parquet"))
        if shards:
            return from_rows(str(base), (row for shard in shards for row in usable(read_rows(shard, _COLUMNS.needed))))
    file = raw_file(path, _FILES[split], "arxiv")
    return from_rows(str(file), usable(read_rows(file, _COLUMNS.needed, ending=".jsonl")))


def from_rows(source: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return the papers of a table, with the subjects removed from their texts."""
    return documents_from_rows(source, map(_row, rows), _COLUMNS)


def _row(row: UsableRow) -> UsableRow:
    where, values = row
    label = names_of_labels(where, values["label"], LABELS)
    if label not in LABELS:
        raise DataError(
            f"{where}: label {label!r} is no subject{did_you_mean(str(label), LABELS)}; expected one of "
            f"{', '.join(LABELS)}"
        )
    return where, {"text": without_subjects(text_value(where, values["text"], "text")), "label": label}
