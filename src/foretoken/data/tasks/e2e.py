"""E2E NLG challenge: descriptions of restaurants from their attributes, from the official CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from foretoken.data.documents import Splits
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.problems import GENERATION
from foretoken.data.readers.archives import zip_files
from foretoken.data.readers.files import as_text, is_folder, is_there, read_bytes
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.rows import Row, filled
from foretoken.data.readers.tables import delimited
from foretoken.data.tasks.base import Task, from_hub, raw_file
from foretoken.errors import DataError, MissingDataError

_ARCHIVE = "e2e-dataset.zip"
_FILES = {"train": "trainset.csv", "validation": "devset.csv", "test": "testset_w_refs.csv"}
_HEADER = ["mr", "ref"]
_HUB_COLUMNS = ("meaning_representation", "human_reference")
_Pair = tuple[str, str, str]  # where, meaning representation, reference


def read(path: Path, _: DataOptions) -> Splits:
    """Return one example per meaning representation (MR), with all its references in the order of the file.

    ``path`` is e2e-dataset.zip, or a folder with it or its CSV files. The MR is the source as published.

    Raises:
        DataError: a file is missing, or a row is malformed; the message names file and line.
    """
    return {split: _grouped(_pairs(where, content)) for split, (where, content) in _contents(path).items()}


def _from_hub(_: str, rows: Iterable[Row]) -> list[GenerationExample]:
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


def _contents(path: Path) -> dict[str, tuple[str, bytes]]:
    """Return place and content of the three files by split."""
    if is_folder(path):
        if not is_there(path / _ARCHIVE):
            files = {split: raw_file(path, (name, f"*/{name}"), "e2e") for split, name in _FILES.items()}
            return {split: (str(file), read_bytes(file, may_be_empty=True)) for split, file in files.items()}
        path /= _ARCHIVE
    found = {name.name: (f"{path}:{name}", content) for name, content in zip_files(path, _is_wanted)}
    missing = [name for name in _FILES.values() if name not in found]
    if missing:
        raise MissingDataError(f"{path}: has no {', '.join(missing)}; expected those of {_ARCHIVE}")
    return {split: found[name] for split, name in _FILES.items()}


def _is_wanted(name: PurePosixPath) -> bool:
    return name.name in _FILES.values()


TASK = Task(
    name="e2e",
    title="E2E NLG challenge",
    summary="A description of a restaurant from its attributes; all references of a meaning representation together.",
    metric="bleu",
    sizes="4,862 / 547 / 630",
    source="e2e-dataset.zip, https://github.com/tuetschek/e2e-dataset",
    licence="CC BY-SA 4.0",
    reader=read,
    hub=from_hub("tuetschek/e2e_nlg", _HUB_COLUMNS, _from_hub, revision=PARQUET),
    problem=GENERATION,
)
