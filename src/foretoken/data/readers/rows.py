"""From rows (where, column values) to documents: the checks that every tabular source shares."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretoken.data.documents import Document, checked, refuse_empty, shown
from foretoken.data.problems import CANDIDATES, CLASSIFICATION, MULTIPLE_CHOICE, QUESTION_ANSWERING, REGRESSION
from foretoken.data.readers.encodings import BAD_BYTE
from foretoken.data.readers.formats import FileFormat
from foretoken.data.readers.notes import note
from foretoken.errors import DataError, did_you_mean

UsableRow = tuple[str, Mapping[str, Any]]  # where, and the values by column
Row = tuple[str, Mapping[str, Any] | DataError]  # or why this row is not usable; those behind it can be read
MOST_ROWS = 10_000_000  # of a compressed table; each takes a few hundred bytes
CHOICES = "choices"
CANDIDATE_COLUMNS, ANSWER = ("query", "candidates", "supports"), "answer"
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
OPTIONAL = ("id",)  # columns that are read where they are


@dataclass(frozen=True)
class ColumnNames:
    """The columns of a table that are read; ``label`` None: the rows are yet to be predicted.

    >>> ColumnNames("question", "answer", problem="multiple-choice").needed
    ['question', 'answer', 'choices']
    """

    text: str = "text"
    label: str | None = "label"
    text_pair: str | None = None
    problem: str = CLASSIFICATION
    format: FileFormat = field(default_factory=FileFormat)

    @property
    def needed(self) -> list[str]:
        """The columns that every row must have."""
        if self.problem == QUESTION_ANSWERING:
            return [QUESTION, CONTEXT] if self.label is None else [QUESTION, CONTEXT, ANSWERS]
        if self.problem == CANDIDATES:
            return [*CANDIDATE_COLUMNS, *([] if self.label is None else [ANSWER])]
        choices = CHOICES if self.problem == MULTIPLE_CHOICE else None
        return [name for name in (self.text, self.label, self.text_pair, choices) if name is not None]


def check_columns(where: str, columns: Collection[str], needed: Sequence[str]) -> None:
    """Raise a DataError that names the columns there are when a needed one is missing."""
    for name in needed:
        if name not in columns:
            raise DataError(
                f"{where}: no column {name!r}{did_you_mean(name, columns)}; the columns are {shown(list(columns))} "
                "(in your own data, text_column and label_column may name others)"
            )


def usable(rows: Iterable[Row]) -> Iterator[UsableRow]:
    """Yield the rows.

    Raises:
        DataError: a row is not usable.
    """
    for where, values in rows:
        if isinstance(values, DataError):
            raise values
        yield where, values


def refuse_repeated(where: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise a DataError when two columns have the same name and one of them is to be read."""
    repeated = next((name for name in (*needed, *OPTIONAL) if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{where}: has column {repeated!r} more than once; column names must be unique")


def refuse_claim(where: str, rows: int) -> None:
    """Raise a DataError for more rows than fit into memory, which a small compressed file can claim to have."""
    if rows > MOST_ROWS:
        raise DataError(f"{where}: has {rows:,} rows, and at most {MOST_ROWS:,} are read; take fewer")


def documents_from_rows(source: Path | str, rows: Iterable[Row], columns: ColumnNames) -> list[Document]:
    """Return checked documents; the column ``id`` is used where there is one, else the row's number.

    Raises:
        DataError: no rows, a missing value, a text that is no string, a label that is no number where the
            problem is regression, an empty document, a repeated id.
    """
    documents = [_document(where, values, number, columns) for number, (where, values) in enumerate(usable(rows))]
    refuse_empty(documents)
    return checked(documents, f"{source}: has no documents; expected at least one row of data")


def _document(where: str, values: Mapping[str, object], number: int, columns: ColumnNames) -> Document:
    label = columns.label
    regression = columns.problem == REGRESSION
    return Document(
        id=row_id(where, values, number),
        text=text_value(where, values[columns.text], columns.text),
        text_pair=columns.text_pair and text_value(where, values[columns.text_pair], columns.text_pair),
        label=None if label is None or regression else label_name(where, values[label], label),
        value=label_value(where, values[label], label) if label is not None and regression else None,
        where=where,
    )


def row_id(where: str, values: Mapping[str, object], number: int) -> str:
    """Return the row's ``id``, or its number where it has none."""
    value = values.get("id")
    return str(number) if value is None or value == "" else _whole(where, str(value), "id")


def text_value(where: str, value: object, column: str) -> str:
    """Return a text; DataError for anything else."""
    if value is None:
        raise DataError(f"{where}: column {column!r} has no value; remove the row or fill it in")
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r} holds {type(value).__name__}, expected text (a string)")
    return _whole(where, value, column)


def filled(where: str, value: object, name: str) -> str:
    """Return a text that is more than white space; DataError for anything else."""
    text = text_value(where, value, name)
    if not text.strip():
        raise DataError(f"{where}: {name!r} is empty; remove the record or fill it in")
    return text


def field_of(where: str, values: object, name: str, record: str) -> object:
    """Return a field of a JSON object; DataError where it is none, or lacks the field."""
    if not isinstance(values, Mapping) or name not in values:
        raise DataError(f"{where}: no {name!r}; expected a record of {record}")
    return values[name]


def _whole(where: str, value: str, column: str) -> str:
    r"""Return the value; JSON can escape half a character (``\ud83d`` alone), which no table can hold.

    The command line has such halves where its bytes are not UTF-8.
    """
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = ord(value[error.start])
        byte = f" (or byte 0x{half - 0xDC00:02x}, which is not in the encoding)" if BAD_BYTE.match(chr(half)) else ""
        raise DataError(
            f"{where}: column {column!r} holds half of a surrogate pair{byte} at character {error.start + 1}; repair "
            "the text where it was cut, or name the encoding with data.encoding; data.bad_rows: drop leaves the row out"
        ) from None
    return value


def label_name(where: str, value: object, column: str) -> str:
    """Return a label as text: booleans as true and false, whole numbers without a decimal point.

    >>> label_name("x.jsonl:1", True, "label"), label_name("x.jsonl:1", 3.0, "label")
    ('true', '3')
    """
    if isinstance(value, str) and value.strip():
        return _whole(where, value.strip(), column)
    if value is None or value != value or isinstance(value, str):
        raise DataError(f"{where}: column {column!r} has no value; give every document a label or remove the row")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, int):
        return str(value)
    raise DataError(
        f"{where}: column {column!r} holds {type(value).__name__}, expected one class name or number per document"
    )


def label_value(where: str, value: Any, column: str) -> float:
    """Return the number that a label of a regression is.

    >>> label_value("x.csv:2", " 2.50", "score")
    2.5
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError(f"{where}: column {column!r} has no value; give every document a number or remove the row")
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"{where}: column {column!r} holds {value!r}, expected a number (with a decimal comma: data.format.decimal)"
        )
    return number


def with_decimal_points(source: Path | str, rows: Iterable[Row], column: str, sign: str) -> Iterable[Row]:
    """Return the rows with a decimal point in a column, where its sign is a comma, or every value leaves no doubt."""
    rows = list(rows)
    values = [str(row[column]) for _, row in rows if not isinstance(row, DataError)]
    thousands = all(re.fullmatch(r"[-+]?\d{1,3},\d{3}", value) for value in values)
    if sign == "auto" and all(re.fullmatch(r"[-+]?\d+,\d+", value) for value in values) and not thousands:
        note(source, f"column {column!r} has decimal commas; data.format.decimal can say otherwise", kind=column)
        sign = ","
    if sign != ",":
        return rows
    return [(w, r if isinstance(r, DataError) else {**r, column: str(r[column]).replace(",", ".")}) for w, r in rows]


def names_of_labels(where: str, value: object, names: Sequence[str] | None) -> object:
    """Return the class name of a class number; any other value unchanged.

    Raises:
        DataError: a number outside the classes (-1 marks documents without a label).
    """
    if names is None or not isinstance(value, int):
        return value
    if not 0 <= value < len(names):
        raise DataError(
            f"{where}: class number {value} is not among the {len(names)} classes; documents without a "
            "label (-1) "
            "can be neither trained on nor scored"
        )
    return names[value]


def named_row(where: str, values: Mapping[str, object], names: Mapping[str, Sequence[str]]) -> Row:
    """Return the row with class names in place of the class numbers of these columns."""
    try:
        return where, {name: names_of_labels(where, value, names.get(name)) for name, value in values.items()}
    except DataError as error:
        return where, error
