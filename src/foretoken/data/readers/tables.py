"""Readers of single files: csv, tsv, jsonl, json and plain text; parquet is in a module of its own."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from foretoken.data.documents import shown
from foretoken.data.readers.files import kind_of, opened, read_bytes, read_text
from foretoken.data.readers.json_files import decoded
from foretoken.data.readers.parquet import parquet_rows
from foretoken.data.readers.rows import Row, check_columns
from foretoken.errors import DataError

_FIELD_LIMIT = 2**31 - 1  # csv's own limit of 128 KiB per field is less than one long document
_JSON = (".json", ".jsonl", ".ndjson")
_BEGINNINGS = (  # and which endings go with them, the best one first
    (re.compile(rb"PAR1"), "a parquet file", (".parquet",)),
    (re.compile(rb'(\xef\xbb\xbf)?\s*(\[\s*\{|\{\s*\n|\{\s*"(data|version)")'), "JSON", _JSON),
    (re.compile(rb'(\xef\xbb\xbf)?\s*\{ *"'), "JSON", (".jsonl", *_JSON)),
    (re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype )?html", re.IGNORECASE), "a web page", ()),
)
_Reader = Callable[[Path, Sequence[str]], Iterator[Row]]


def read_rows(path: Path, needed: Sequence[str], ending: str | None = None) -> Iterator[Row]:
    """Return the rows of one table file, each with the needed columns; read as if its name had this ending.

    Raises:
        DataError: the file is of no kind that can be read, or a row is not usable.
    """
    ending = ending or path.suffix.lower()
    _refuse_other_ending(path, ending)
    if ending not in READERS:
        what = kind_of(read_bytes(path))
        unread = f"files ending in {path.suffix or '(nothing)'!r} cannot be read; expected one of {', '.join(READERS)}"
        raise DataError(f"{path}: {f'is {what}' if what else unread}")
    return READERS[ending](path, needed)


def _refuse_other_ending(path: Path, ending: str) -> None:
    """Raise a DataError where a file plainly begins as one that has another ending."""
    with opened(path) as file:
        beginning = file.read(100)
    for pattern, what, endings in _BEGINNINGS:
        if pattern.match(beginning) and ending not in endings:
            remedy = f"give it the ending {endings[0]}" if endings else "fetch the file itself"
            raise DataError(f"{path}: is {what}; {remedy}")


def _delimited(source: Path | str, text: str, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a text that are not blank, each with the place where it begins.

    Raises:
        DataError: a quoted field is not closed, or goes on behind its quote; the message names the line.
    """
    # strict: without it an unclosed quote swallows the rest of the file in silence
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = rows.line_num + 1
        with _field_limit():
            try:
                row = next(rows, None)
            except csv.Error as error:
                raise DataError(_malformed(source, line, rows.line_num, str(error))) from None
        if row is None:
            return
        if row:
            yield f"{source}:{line}", row


def _csv_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    return delimited_rows(path, read_text(path), needed)


def _tsv_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    return delimited_rows(path, read_text(path), needed, "\t")


def delimited_rows(source: Path | str, text: str, needed: Sequence[str], delimiter: str = ",") -> Iterator[Row]:
    """Yield the rows of a text whose first row names the columns.

    Raises:
        DataError: a column is missing, or a row is malformed or has another number of fields.
    """
    header: list[str] | None = None
    for where, row in _delimited(source, text, delimiter):
        if header is None:
            header = _header(where, row, needed, delimiter)
        elif len(row) != len(header):
            raise DataError(
                f"{where}: the row has {len(row)} fields, expected {len(header)} ({shown(header)}); "
                f"put fields that hold {delimiter!r} or a line break in double quotes"
            )
        else:
            yield where, dict(zip(header, row, strict=True))


def _header(where: str, row: list[str], needed: Sequence[str], delimiter: str) -> list[str]:
    repeated = sorted(name for name, count in Counter(row).items() if count > 1)
    if repeated:
        raise DataError(f"{where}: the header names {repeated[0]!r} more than once; column names must be unique")
    if len(row) == 1 and row[0] not in needed:
        _refuse_other_delimiter(where, row[0], delimiter)
    check_columns(where, row, needed)
    return row


def _refuse_other_delimiter(where: str, header: str, delimiter: str) -> None:
    other = next((mark for mark in ";\t|," if mark in header), None)
    if other is not None:
        remedy = "name it .tsv" if other == "\t" else f"write it again with {delimiter!r}"
        raise DataError(
            f"{where}: the header is one column, {header!r}: the file is separated by {other!r}, and its ending stands "
            f"for {delimiter!r}; {remedy}"
        )


def _malformed(source: Path | str, first: int, last: int, reason: str) -> str:
    span = f" (the row runs to line {last})" if last > first else ""
    return (
        f"{source}:{first}: malformed row: {reason}{span}; close every quoted field, "
        'and write a double quote inside a quoted field as ""'
    )


@contextmanager
def _field_limit() -> Iterator[None]:
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _jsonl_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield _object(f"{path}:{number}", decoded(path, line, number), needed)


def _json_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """Yield the objects of a list, or of lines."""
    text = read_text(path)
    if not text.lstrip().startswith("["):
        return _jsonl_rows(path, needed)
    items = enumerate(decoded(path, text), start=1)
    return (_object(f"{path}:item {number}", item, needed) for number, item in items)


def _object(where: str, value: object, needed: Sequence[str]) -> Row:
    if not isinstance(value, dict):
        example = ", ".join(f'"{name}": ...' for name in needed)
        raise DataError(f"{where}: got a JSON {type(value).__name__}, expected an object such as {{{example}}}")
    check_columns(where, value, needed)
    return where, value


READERS: dict[str, _Reader] = {
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".parquet": parquet_rows,
}
