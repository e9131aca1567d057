"""E2E NLG challenge: descriptions of restaurants from their attributes, from the official CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from foretoken.data.documents import Splits
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.archives import raw_files
from foretoken.data.readers.files import as_text
from foretoken.data.readers.rows import Row, filled
from foretoken.data.readers.tables import delimited
from foretoken.errors import DataError, MissingDataError

_FILES = {"train": "trainset.csv", "validation": "devset.csv", "test": "testset_w_refs.csv"}
_HEADER = ["mr", "ref"]
_HUB_COLUMNS = ("meaning_representation", "human_reference")
_Pair = tuple[str, str, str]  # where, meaning representation, reference


def read(path: Path, _: DataOptions) -> Splits:
    """Return one example per meaning representation (MR), with all its references in the order of the file.

    ``path`` is e2e-dataset.zip, or a folder with it or its CSV files. The MR is the source as published.

    Raises:
        MissingDataError: a file is missing.
        DataError: a row is malformed; the message names file and line.
    """
    found = {name.name: (where, content) for name, where, content in raw_files(path, "e2e-dataset.zip", _is_wanted)}
    missing = [name for name in _FILES.values() if name not in found]
    if missing:
        raise MissingDataError(f"{path}: no {', '.join(missing)} here, and no e2e-dataset.zip with all of them")
    return {split: _grouped(_pairs(*found[name])) for split, name in _FILES.items()}


def from_rows(_: str, rows: Iterable[Row]) -> list[GenerationExample]:
    """Return the same from the rows on the hub."""
    texts = ((where, *(filled(where, values[name], name) for name in _HUB_COLUMNS)) for where, values in rows)
    return _grouped((where, mr, reference) for where, mr, reference in texts)


def _grouped(pairs: Iterable[_Pair]) -> list[GenerationExample]:
    references: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for where, mr, reference in pairs:
        references.setdefault(mr, []).append(reference)
        places.setdefault(mr, where)
    return [
        GenerationExample(str(number), mr, tuple(texts), places[mr])
        for number, (mr, texts) in enumerate(references.items())
    ]


def _pairs(file: str, content: bytes) -> Iterator[_Pair]:
    rows = delimited(file, as_text(file, content))
    where, header = next(rows, (file, []))
    if [name.lower() for name in header] != _HEADER:
        raise DataError(f"{where}: the header is {', '.join(header) or 'missing'}, expected mr, ref")
    for where, row in rows:
        if len(row) != len(_HEADER):
            raise DataError(f"{where}: the row has {len(row)} fields, expected 2 (mr, ref)")
        yield where, filled(where, row[0], "mr"), filled(where, row[1], "ref")


def _is_wanted(name: PurePosixPath) -> bool:
    return name.name in _FILES.values()
