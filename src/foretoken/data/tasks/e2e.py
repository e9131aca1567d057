"""E2E NLG challenge: descriptions of restaurants from their attributes, from the official CSV files."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.data.documents import Corpus
from foretoken.data.examples import Generation
from foretoken.data.problems import GENERATION
from foretoken.data.readers.generation_files import filled
from foretoken.data.readers.hub_tables import PARQUET, hub_rows
from foretoken.data.readers.raw_files import raw_file
from foretoken.data.readers.rows import Row
from foretoken.errors import DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions
    from foretoken.data.tasks.base import Task

_FILES = {"train": "trainset.csv", "validation": "devset.csv", "test": "testset_w_refs.csv"}
_HEADER = ["mr", "ref"]
HUB = "tuetschek/e2e_nlg"
_HUB_COLUMNS = ("meaning_representation", "human_reference")
_Pair = tuple[str, str, str]  # where, meaning representation, reference


def read(path: Path | None, _: DataOptions) -> Corpus:
    """Return one example per meaning representation (MR), with all its references in the order of the file.

    ``path`` is e2e-dataset.zip, or a folder with it or its CSV files. The MR is the source as published.

    Raises:
        DataError: a file is missing, or a row is malformed; the message names file and line.
    """
    splits: dict[str, list[Any]] = {
        split: _grouped(_pairs(where, text)) for split, (where, text) in _contents(path).items()
    }
    return Corpus(splits, problem=GENERATION)


def read_hub(_: Task, __: DataOptions) -> Corpus:
    """Return the hub copy, which has the same rows."""
    rows = hub_rows(HUB, None, _HUB_COLUMNS, PARQUET)
    splits: dict[str, list[Any]] = {split: _grouped(map(_from_row, items)) for split, items in rows.items()}
    return Corpus(splits, problem=GENERATION)


def _from_row(row: Row) -> _Pair:
    where, values = row
    mr, reference = (filled(where, values[name], name) for name in _HUB_COLUMNS)
    return where, mr, reference


def _grouped(pairs: Iterable[_Pair]) -> list[Generation]:
    references: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for where, mr, reference in pairs:
        references.setdefault(mr, []).append(reference)
        places.setdefault(mr, where)
    return [
        Generation(str(number), mr, tuple(texts), places[mr]) for number, (mr, texts) in enumerate(references.items())
    ]


def _pairs(file: str, text: str) -> Iterator[_Pair]:
    rows = _numbered(file, text)
    _check_header(*next(rows, (file, [])))
    for where, row in rows:
        if len(row) != len(_HEADER):
            raise DataError(f"{where}: the row has {len(row)} fields, expected 2 (mr, ref)")
        yield where, filled(where, row[0], "mr"), filled(where, row[1], "ref")


def _numbered(file: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows that are not blank, each with the line where it begins."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        where = f"{file}:{rows.line_num + 1}"
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise DataError(f"{where}: malformed row: {error}; close every quoted field") from None
        if row is None:
            return
        if row:
            yield where, row


def _check_header(where: str, row: list[str]) -> None:
    if [name.lower() for name in row] != _HEADER:
        raise DataError(f"{where}: the header is {', '.join(row) or 'missing'}, expected mr, ref")


def _contents(path: Path | None) -> dict[str, tuple[str, str]]:
    """Return (name, text) of the three files by split."""
    assert path is not None
    if path.is_dir() and not (path / "e2e-dataset.zip").is_file():
        files = {split: raw_file(path, (name, f"*/{name}"), "e2e") for split, name in _FILES.items()}
        return {split: (str(file), _decoded(str(file), file.read_bytes())) for split, file in files.items()}
    return _unzipped(path / "e2e-dataset.zip" if path.is_dir() else path)


def _unzipped(archive: Path) -> dict[str, tuple[str, str]]:
    try:
        with zipfile.ZipFile(archive) as content:
            members = {Path(name).name: name for name in content.namelist()}
            missing = [name for name in _FILES.values() if name not in members]
            if missing:
                raise DataError(f"{archive}: has no {', '.join(missing)}; expected those of e2e-dataset.zip")
            raw = {split: (f"{archive}:{members[name]}", content.read(members[name])) for split, name in _FILES.items()}
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive}: the archive is damaged or no zip archive ({error}); fetch it again") from error
    return {split: (where, _decoded(where, data)) for split, (where, data) in raw.items()}


def _decoded(where: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{where}:{line}: byte 0x{content[error.start]:02x} is not valid UTF-8") from None
