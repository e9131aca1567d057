"""E2E NLG challenge: descriptions of restaurants from their attributes, from the official CSV files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foretoken.data.documents import Splits
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.archives import raw_files
from foretoken.data.readers.files import as_text
from foretoken.data.readers.rows import UsableRow, filled, usable
from foretoken.data.readers.tables import delimited_rows
from foretoken.errors import MissingDataError

_FILES = {"train": "trainset.csv", "validation": "devset.csv", "test": "testset_w_refs.csv"}
_COLUMNS = ("mr", "ref")
_HUB_COLUMNS = ("meaning_representation", "human_reference")


def read(path: Path, _: DataOptions) -> Splits:
    """Return one example per meaning representation (MR), with all its references in the order of the file.

    ``path`` is e2e-dataset.zip, or a folder with it or its CSV files. The MR is the source as published.

    Raises:
        MissingDataError: a file is missing.
        DataError: a row is malformed; the message names file and line.
    """
    files = raw_files(path, "e2e-dataset.zip", lambda name: name.name in _FILES.values())
    contents = {name.name: (where, content) for name, where, content in files}
    missing = [name for name in _FILES.values() if name not in contents]
    if missing:
        raise MissingDataError(f"{path}: no {', '.join(missing)} here, and no e2e-dataset.zip with all of them")
    splits = {}
    for split, name in _FILES.items():
        where, content = contents[name]
        rows = delimited_rows(where, as_text(where, content), _COLUMNS)
        splits[split] = from_rows(where, usable(rows), _COLUMNS)
    return splits


def from_rows(_: str, rows: Iterable[UsableRow], columns: tuple[str, str] = _HUB_COLUMNS) -> list[GenerationExample]:
    """Return one example per meaning representation; ``columns`` are those of representation and reference."""
    by_mr: dict[str, tuple[str, list[str]]] = {}
    for where, values in rows:
        mr, reference = (filled(where, values[name], name) for name in columns)
        by_mr.setdefault(mr, (where, []))[1].append(reference)
    return [
        GenerationExample(str(number), mr, tuple(references), where)
        for number, (mr, (where, references)) in enumerate(by_mr.items())
    ]
