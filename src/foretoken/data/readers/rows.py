"""From rows (where, column values) to documents: the checks that every tabular source shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from foretoken.data.bad_rows import BadRow, BadRows
from foretoken.data.documents import E, is_readable, refuse_repeated_id, repeated_id, shown
from foretoken.data.fields import ABSENT, MayLack, Template, as_text, at, read_names
from foretoken.data.problems import CLASSIFICATION, PROBLEMS, Rows
from foretoken.data.readers.encodings import AUTO, BAD_BYTE
from foretoken.data.readers.formats import FileFormat
from foretoken.errors import DataError, did_you_mean
from foretoken.options import flatten

UsableRow = tuple[str, Mapping[str, Any]]  # where, and the values by column
Row = tuple[str, Mapping[str, Any] | DataError]  # or why this row is not usable; those behind it can be read
MOST_ROWS = 10_000_000  # of a compressed table; each takes a few hundred bytes
CHOICES = "choices"
CANDIDATE_COLUMNS, ANSWER = ("query", "candidates", "supports"), "answer"
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
_FIXED = (CHOICES, *CANDIDATE_COLUMNS, ANSWER, QUESTION, CONTEXT, ANSWERS)
_NAMED = " (--text-column and --label-column, in a recipe data.text_column and data.label_column, name others)"
OPTIONAL = ("id",)  # columns that are read where they are
V = TypeVar("V")


@dataclass(frozen=True)
class ColumnNames:
    """The columns of a table that are read; ``label`` None: the rows are yet to be predicted.

    ``bad_rows`` takes the rows that are not usable; ``check`` raises a DataError for an example that is not. Where
    words are tagged, ``text`` and ``label`` are the columns of words and tags, with a default where they are to be
    found, ``sentence`` is that of sentences, and ``scheme`` that of the tags; ``is_exact`` is False for columns that
    are remembered from training, which other files may lack.

    >>> ColumnNames("question", "answer", problem="multiple-choice").needed
    ['question', 'answer', 'choices']
    """

    text: str = "text"
    label: str | None = "label"
    text_pair: str | None = None
    problem: str = CLASSIFICATION
    format: FileFormat = field(default_factory=FileFormat)
    bad_rows: BadRows = field(default_factory=BadRows, compare=False)
    label_columns: tuple[str, ...] = ()
    label_separator: str | None = None
    sentence: str | None = None
    scheme: str = AUTO
    is_exact: bool = True
    template: Template | None = None  # `text` is then what it is written as
    group: str | None = None
    check: Callable[[Any], object] | None = field(default=None, compare=False)

    @property
    def needed(self) -> list[str]:
        """The columns that every row must have, and those that it may lack; where words are tagged, files tell them."""
        rows = PROBLEMS[self.problem].rows
        if rows is Rows.WORDS:
            return []
        if rows is Rows.QUESTIONS:
            return [QUESTION, CONTEXT] if self.label is None else [QUESTION, CONTEXT, ANSWERS]
        if rows is Rows.CANDIDATES:
            return [*CANDIDATE_COLUMNS, *([] if self.label is None else [ANSWER])]
        choices = CHOICES if rows is Rows.CHOICES else None
        labels = self.label_columns if self.label is not None and self.label_columns else (self.label,)
        texts = (self.text,) if self.template is None else self.template.columns
        group = self.group and MayLack(self.group)
        return [name for name in (*texts, *labels, self.text_pair, choices, group) if name is not None]


def is_column_number(name: str) -> bool:
    """Say whether a column is named by its number, from 1, as in files of words and tags, which have no header."""
    return re.fullmatch("[1-9][0-9]{0,3}", name) is not None


def check_columns(where: str, columns: Collection[str], needed: Sequence[str]) -> None:
    """Raise a DataError that names the columns there are when a needed one is missing, or that of a dotted name."""
    for name in needed:
        if not isinstance(name, MayLack) and not read_names(columns, [name]):
            raise _no_column(where, name, columns)


def _no_column(where: str, name: str, columns: Collection[str]) -> DataError:
    return DataError(
        f"{where}: no column {name!r}{did_you_mean(name, columns)}; the columns are {shown(list(columns))}"
        f"{'' if name in _FIXED else _NAMED}"
    )


def picked(rows: Iterable[Row], columns: ColumnNames) -> Iterable[Row]:
    """Return the rows with what their fields hold under dotted names, and the text of a template under ``text``."""
    if columns.template is None and not any("." in name for name in columns.needed):
        return rows
    return ((where, row if isinstance(row, DataError) else _picked(columns, where, row)) for where, row in rows)


def _picked(columns: ColumnNames, where: str, values: Mapping[str, Any]) -> Mapping[str, Any] | DataError:
    row = {**values}
    try:
        for name in columns.needed:
            row[name] = at(values, name)
            if row[name] is ABSENT and not isinstance(name, MayLack):
                raise _no_column(where, name, flatten(values))
        if columns.template is not None:
            row[columns.text] = _joined(columns.template, where, row)
    except DataError as error:
        error.row_id = values.get("id")
        return error
    return row


def _joined(template: Template, where: str, values: Mapping[str, Any]) -> str:
    """Return the text of several columns; an empty one where all of them are."""
    texts = {name: as_text(where, values[name], name) for name in template.columns}
    if not any(map(is_readable, texts.values())):
        return ""
    empty = next(
        (n for _, n in template.pieces if n and not isinstance(n, MayLack) and not is_readable(texts[n])), None
    )
    if empty is not None:
        raise DataError(
            f"{where}: column {empty!r} has no value; remove the row, fill it in, or write {{{empty}?}} in data.text, "
            "which lets it be empty"
        )
    return template.filled(texts.__getitem__)


def usable(rows: Iterable[Row]) -> Iterator[UsableRow]:
    """Yield the rows.

    Raises:
        DataError: a row is not usable.
    """
    for where, values in rows:
        if isinstance(values, DataError):
            raise values
        yield where, values


def usable_rows(rows: Iterable[Row]) -> Iterator[Mapping[str, Any]]:
    """Yield the values of the rows that are usable."""
    return (values for _, values in rows if not isinstance(values, DataError))


def refuse_repeated(where: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise a DataError when two columns have the same name and one of them is to be read."""
    repeated = next((name for name in read_names(names, [*needed, *OPTIONAL]) if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{where}: has column {repeated!r} more than once; column names must be unique")


def refuse_claim(where: str, rows: int) -> None:
    """Raise a DataError for more rows than fit into memory, which a small compressed file can claim to have."""
    if rows > MOST_ROWS:
        raise DataError(f"{where}: has {rows:,} rows, and at most {MOST_ROWS:,} are read; take fewer")


def read_each(
    rows: Iterable[tuple[str, V | DataError]],
    make: Callable[[str, V, int], E],
    columns: ColumnNames,
    said_of_none: str,
) -> list[E]:
    """Return what each row becomes; a row that is not usable, or repeats an id, goes to ``columns.bad_rows``.

    Args:
        rows: where each is, and its values or why there are none.
        make: makes an example of where, values and number of a row, from 0.
        columns: those of the source.
        said_of_none: the error for a source without any row.

    Raises:
        DataError: there is no row, or bad rows are an error, or none of labelled ones is usable.
    """
    examples: list[E] = []
    bad: list[BadRow] = []
    first: dict[str, str] = {}
    numbers: list[int] = []
    for number, (where, values) in enumerate(rows, columns.bad_rows.start):
        try:
            if isinstance(values, DataError):
                raise values
            example = make(where, values, number)
            if columns.group is not None and isinstance(values, Mapping):
                example = _in_group(example, where, values.get(columns.group), columns.group)
            refuse_repeated_id(first, example)
            if columns.check is not None:
                columns.check(example)
        except DataError as error:
            bad.append(BadRow(number, _id_or_number(values, number), where, str(error)))
        else:
            examples.append(example)
            numbers.append(number)
    _set_repeated_aside(examples, numbers, bad, columns.bad_rows)
    columns.bad_rows.set_aside(bad, len(examples) + len(bad))
    if not examples and not (bad and columns.label is None):
        raise DataError(f"{bad[0].reason} (all {len(bad)} rows are so)" if bad else said_of_none)
    return examples


def _set_repeated_aside(examples: list[E], numbers: Sequence[int], bad: list[BadRow], bad_rows: BadRows) -> None:
    """Move the examples whose ids an earlier piece of their source has to the bad rows, in place."""
    if bad_rows.used_ids is None:
        return
    repeated = bad_rows.used_ids.add([example.id for example in examples])
    for example, number, is_repeated in zip(examples, numbers, repeated, strict=True):
        if is_repeated:
            reason = f"{example.where}: {repeated_id(example.id, 'in an earlier row')}"
            bad.append(BadRow(number, example.id, example.where, reason))
    bad.sort(key=lambda row: row.number)
    examples[:] = [example for example, is_repeated in zip(examples, repeated, strict=True) if not is_repeated]


def _in_group(example: Any, where: str, value: object, column: str) -> Any:
    """Return the example as one of its group; one without a value is alone."""
    if isinstance(value, float) and value.is_integer():  # of whole numbers, where some are missing
        value = int(value)
    return replace(example, group=as_text(where, value, column).strip() or None)


def _id_or_number(values: object, number: int) -> str:
    value = values.get("id") if isinstance(values, Mapping) else getattr(values, "row_id", None)
    return str(number) if value is None or value == "" else str(value)


def row_id(where: str, values: Mapping[str, object], number: int) -> str:
    """Return the row's ``id``, or its number where it has none."""
    return whole(where, _id_or_number(values, number), "id")


def text_value(where: str, value: object, column: str) -> str:
    """Return a text; DataError for anything else."""
    if value is None:
        raise DataError(f"{where}: column {column!r} has no value; remove the row or fill it in")
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r} holds {type(value).__name__}, expected text (a string)")
    return whole(where, value, column)


def filled(where: str, value: object, name: str) -> str:
    """Return a text that has something to read; DataError for anything else."""
    text = text_value(where, value, name)
    if not is_readable(text):
        raise DataError(f"{where}: {name!r} is empty; remove the record or fill it in")
    return text


def field_of(where: str, values: object, name: str, record: str) -> object:
    """Return a field of a JSON object; DataError where it is none, or lacks the field."""
    if not isinstance(values, Mapping) or name not in values:
        raise DataError(f"{where}: no {name!r}; expected a record of {record}")
    return values[name]


def whole(where: str, value: str, column: str) -> str:
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
            "the text where it was cut, or name the encoding with data.encoding"
        ) from None
    return value
