"""Named entities: CoNLL-2003, CoNLL-2004, OntoNotes 5.0 and WNUT-17."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from foretoken.data.documents import Splits
from foretoken.data.examples import OUTSIDE, TaggedExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.conll import read_tagged
from foretoken.data.readers.rows import UsableRow
from foretoken.data.readers.tagging.conll2012 import conll2012_folder, read_conll2012
from foretoken.data.readers.tagging.schemes import to_iob2
from foretoken.data.tasks.base import from_files, raw_folder
from foretoken.errors import DataError, MissingDataError


def from_rows(_: str, rows: Iterable[UsableRow]) -> list[TaggedExample]:
    """Return the sentences of the rows on the hub, whose tags are names or class numbers."""
    return [_example(number, row) for number, row in enumerate(rows) if row[1]["tokens"]]


def _example(number: int, row: UsableRow) -> TaggedExample:
    where, values = row
    words, tags = values["tokens"], values["ner_tags"]
    if len(words) != len(tags):
        raise DataError(f"{where}: {len(words)} tokens but {len(tags)} ner_tags; every word needs one tag")
    return TaggedExample(str(number), tuple(words), tuple(to_iob2(tags)), where)


def tags(*types: str) -> tuple[str, ...]:
    """Return the tags of types of entities, ``O`` first."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI"))


_ONTONOTES = {  # folders of the shared task
    "train": ("train",),
    "validation": ("development", "dev"),
    "test": ("conll-2012-test", "test"),
}
_CONLLX = {  # one file per split, of words and tags behind numbers of words
    "train": ("train.sd.conllx",),
    "validation": ("dev.sd.conllx",),
    "test": ("test.sd.conllx",),
}
_COLUMNS = {"train": ("train.txt",), "validation": ("dev.txt", "valid.txt"), "test": ("test.txt",)}


def read_ontonotes(path: Path, options: DataOptions) -> Splits:
    """Return the splits of folders of the CoNLL-2012 shared task, of ``*.sd.conllx`` files or of files of columns."""
    folders = {split: conll2012_folder(path, names) for split, names in _ONTONOTES.items()}
    found = {split: folder for split, folder in folders.items() if folder is not None}
    if len(found) == len(_ONTONOTES):
        return {split: read_conll2012(folder) for split, folder in found.items()}
    if found:
        missing = ", ".join(_ONTONOTES[split][-1] for split in _ONTONOTES if split not in found)
        raise MissingDataError(
            f"{path}: no folder {missing} with files *gold_conll beside {', '.join(map(str, found.values()))}"
        )
    if any(raw_folder(path).glob("*.sd.conllx")):
        return from_files("ontonotes", _CONLLX, partial(read_tagged, word_column=1))(path, options)
    return from_files("ontonotes", _COLUMNS, read_tagged)(path, options)
