"""Tables of fields with a delimiter between them (csv, tsv and the like): how a file is written, and its rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from foretoken.data.documents import shown
from foretoken.data.readers.files import text_lines
from foretoken.data.readers.formats import SNIFFED, FileFormat
from foretoken.data.readers.notes import note
from foretoken.data.readers.rows import Row, check_columns, refuse_repeated
from foretoken.errors import DataError, cut

ENDINGS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_UNQUOTED = "\t|"  # no quotes between these, unless a file shows them
_SAMPLE, _SAMPLE_ROWS = 1 << 18, 50  # characters and rows that tell the delimiter
_SHORT = 40  # characters of a label and the like
_FIELD_LIMIT = 2**31 - 1  # csv's own limit of 128 KiB per field is less than one long document
_SEP = re.compile(r'"?sep=(.)"?(?=\r|\n)', re.IGNORECASE)  # the first line of a file that Excel is to open
_DECIMAL = re.compile(r"\s*[-+]?\d+,\d+\s*")
_Record = tuple[int, int, list[str] | csv.Error]  # first and last line, and the fields


def delimited_rows(
    source: Path | str,
    text: str,
    needed: Sequence[str],
    format: FileFormat | None = None,
    *,
    ending: str = ".csv",
    names: Sequence[str] = (),
    number: str | None = None,
) -> Iterator[Row]:
    """Yield the rows of a text, each with the names of its columns.

    Args:
        source: what messages call the text.
        text: the whole text.
        needed: the columns that are read.
        format: what is known of how it is written.
        ending: the ending of the file, which tells the usual delimiter.
        names: the columns of a file that does not name them; its rows may go on with more.
        number: a column of numbers, which may have a decimal comma.

    Raises:
        DataError: a column is missing, or the rows have no end or beginning that is certain.
    """
    format = format or FileFormat()
    usual = ENDINGS.get(ending, ",")
    sep = _SEP.match(text)
    text = text[sep.end() :] if sep else text  # the line's end stays, so that lines keep their numbers
    delimiter = format.delimiter or (sep[1] if sep else _likely_delimiter(text, needed, format, usual))
    quoted = format.quoting == "double" or (format.quoting == "auto" and _has_quotes(source, text, delimiter))
    rows = _rows(
        source, text, _records(text, delimiter, quoted), _Layout(tuple(needed), delimiter, names, format.header)
    )
    commas = number is not None and format.decimal in (",", "auto" if delimiter == ";" else ",")
    if number is not None and commas:
        rows, commas = _with_points(list(rows), number, sure=format.decimal == ",")
    sniffed = [
        *([f"columns separated by {delimiter!r}"] if format.delimiter is None and delimiter != usual else []),
        *(["fields in double quotes"] if format.quoting == "auto" and delimiter in _UNQUOTED and quoted else []),
        *([f"decimal commas in {number!r}"] if format.decimal == "auto" and commas else []),
    ]
    if sniffed:
        words = " and ".join(sniffed)
        note(source, f"read as a table with {words}; data.format can say that it is another", kind=words)
    yield from rows


def _records(text: str, delimiter: str, quoted: bool) -> Iterator[_Record]:
    """Yield the records of a text that are not blank, each with its first and last line; errors where one is malformed.

    Lines end at a line feed or a carriage return, or both.
    """
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # strict: without it an unclosed quote swallows the rest of the file in silence
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        first = rows.line_num + 1
        with _field_limit():
            try:
                row: list[str] | csv.Error | None = next(rows, None)
            except csv.Error as error:
                row = error
        if row is None:
            return
        if row:
            yield first, rows.line_num, row


@contextmanager
def _field_limit() -> Iterator[None]:
    before = csv.field_size_limit(_FIELD_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


# ---- how a file is written


def _likely_delimiter(text: str, needed: Sequence[str], format: FileFormat, usual: str) -> str:
    """Return the delimiter that gives the needed columns, or rows of equal length; the usual one where none does."""
    sample = "\n".join(text_lines(text[:_SAMPLE])[:_SAMPLE_ROWS])

    def fit(delimiter: str) -> tuple[int, bool]:
        rows = [row for *_, row in _records(sample, delimiter, delimiter not in _UNQUOTED) if isinstance(row, list)]
        header = [name.strip() for name in rows[0]] if rows and format.header else []
        widths = {len(row) for row in rows}
        return sum(name in header for name in needed), len(widths) == 1 and widths != {1}

    return max((usual, *SNIFFED), key=fit)


def _has_quotes(source: Path | str, text: str, delimiter: str) -> bool:
    """Say whether double quotes enclose fields, and are no characters of them.

    Raises:
        DataError: taken as quotes, they enclose what look like rows, or may be so.
    """
    if '"' not in text:
        return False
    quoted = list(_records(text, delimiter, True))
    swallowed = _row_of_rows(text, delimiter, quoted)
    if delimiter not in _UNQUOTED:
        if swallowed:
            raise _ambiguous(source, *swallowed)
        return True
    if swallowed or any(isinstance(row, csv.Error) for *_, row in quoted):
        return False
    plain = list(_records(text, delimiter, False))
    if _misfits(plain) or _misfits(quoted):
        return _misfits(quoted) < _misfits(plain)
    if len(quoted) < len(plain):
        raise _ambiguous(source, *next((first, last) for first, last, _ in quoted if last > first))
    return _shows_quotes(plain)


def _row_of_rows(text: str, delimiter: str, records: Sequence[_Record]) -> tuple[int, int] | None:
    """Return first and last line of the first record that has several lines which look like rows themselves.

    Such a line has as many fields as a row, and one of them is a short value that rows of one line have there.
    """
    width = _width(records)
    folded = [(first, last) for first, last, row in records if last > first and isinstance(row, list)]
    if width < 2 or not folded:
        return None
    plain = [row for first, last, row in records[1:] if first == last and isinstance(row, list)]
    short = [{value for value in column if 0 < len(value) <= _SHORT} for column in zip_longest(*plain, fillvalue="")]
    lines = text_lines(text)

    def is_row(line: str) -> bool:
        fields = [field.strip('"') for field in line.split(delimiter)]
        return len(fields) == width and any(field in known for field, known in zip(fields, short, strict=False))

    return next(((first, last) for first, last in folded if sum(map(is_row, lines[first - 1 : last])) > 1), None)


def _ambiguous(source: Path | str, first: int, last: int) -> DataError:
    return DataError(
        f"{source}:{first}: a double quote begins here and ends in line {last}, with what look like rows between; say "
        "whether quotes enclose fields (data.format.quoting: double) or are characters of the texts "
        "(data.format.quoting: none)"
    )


def _width(records: Sequence[_Record]) -> int:
    return next((len(row) for *_, row in records if isinstance(row, list)), 0)


def _misfits(records: Sequence[_Record]) -> int:
    width = _width(records)
    return sum(len(row) < width or any(row[width:]) for *_, row in records if isinstance(row, list))


def _shows_quotes(records: Sequence[_Record]) -> bool:
    """Say whether all fields of a column begin and end with a quote, or one has a doubled quote inside."""
    rows = [row for *_, row in records[1:] if isinstance(row, list)]
    for column in zip_longest(*rows, fillvalue=""):
        fields = [field for field in column if field]
        enclosed = [field[1:-1] for field in fields if len(field) > 1 and field[0] == field[-1] == '"']
        if len(enclosed) == len(fields) > 1 or any('""' in field for field in enclosed):
            return True
    return False


# ---- its rows


@dataclass(frozen=True)
class _Layout:
    """What is known of the columns of a table."""

    needed: tuple[str, ...]
    delimiter: str
    names: Sequence[str]
    has_header: bool


def _rows(source: Path | str, text: str, records: Iterator[_Record], layout: _Layout) -> Iterator[Row]:
    names = list(layout.names)
    head = list(islice(records, _SAMPLE_ROWS))
    for first, last, row in chain(head, records):
        where = f"{source}:{first}"
        if isinstance(row, csv.Error):
            yield where, _malformed(source, text, first, last, row)
            continue
        if names:
            yield where, _values(where, row, names, layout)
            continue
        if layout.has_header:
            names = _header(where, row, [values for *_, values in head[1:] if isinstance(values, list)], layout.needed)
            continue
        names = [str(number) for number in range(1, len(row) + 1)]
        check_columns(where, names, layout.needed)
        yield where, _values(where, row, names, layout)


def _header(where: str, row: list[str], following: Sequence[list[str]], needed: Sequence[str]) -> list[str]:
    """Return the names of the columns, without blanks around them."""
    names = [name if name.strip() in row else name.strip() for name in row]
    try:
        check_columns(where, names, needed)
    except DataError as error:
        if not any(
            value and value in column for value, column in zip(row, zip(*following, strict=False), strict=False)
        ):
            raise
        columns = [f"{number} ({cut(value, _SHORT)!r})" for number, value in enumerate(row, 1)]
        raise DataError(
            f"{error}; this row looks like data: for a file without names of columns set data.format.header: false, "
            f"and data.text_column and data.label_column to two of {shown(columns)}"
        ) from None
    refuse_repeated(where, names, needed)
    return names


def _values(where: str, row: list[str], names: Sequence[str], layout: _Layout) -> dict[str, str] | DataError:
    """Return the fields by their names; trailing delimiters, in the header or in a row, count for nothing."""
    least = next((n for n in range(len(names), 0, -1) if names[n - 1]), 0)
    if len(row) < least or (any(row[len(names) :]) and not layout.names):
        remedy = f"put fields that hold {layout.delimiter!r} or a line break in double quotes"
        if layout.delimiter in _UNQUOTED:
            remedy = f"no field can hold {layout.delimiter!r} or a line break unless quotes enclose it"
        return DataError(f"{where}: the row has {len(row)} fields, expected {len(names)} ({shown(names)}); {remedy}")
    return dict(zip(names, row, strict=False))


def _malformed(source: Path | str, text: str, first: int, last: int, reason: csv.Error) -> DataError:
    """Return what is wrong with a record.

    Raises:
        DataError: where the next one begins is not certain.
    """
    span = f" (the row runs to line {last})" if last > first else ""
    error = DataError(
        f"{source}:{first}: malformed row: {reason}{span}; close every quoted field, and write a double quote inside a "
        'quoted field as ""; or set data.format.quoting: none, where quotes are characters of the texts'
    )
    if last > first or text_lines(text)[first - 1].count('"') % 2:
        raise error
    return error


def _with_points(rows: list[Row], column: str, *, sure: bool) -> tuple[Iterator[Row], bool]:
    """Return the rows with a decimal point in a column, if that is sure or every value there has a comma."""
    values = [row[column] for _, row in rows if not isinstance(row, DataError)]
    if not sure and not (values and all(map(_DECIMAL.fullmatch, values))):
        return iter(rows), False
    return (
        (where, row if isinstance(row, DataError) else {**row, column: row[column].replace(",", ".")})
        for where, row in rows
    ), True
