"""Rows of tables, the checks of all tabular sources, and rows that cannot be used."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar

from foretoken.data.documents import E, is_readable, refuse_repeated_id, repeated_id, shown
from foretoken.data.fields import ABSENT, MayLack, Template, as_text, at, read_names
from foretoken.data.problems import CLASSIFICATION, PROBLEMS, Rows
from foretoken.data.readers.formats import AUTO, BAD_BYTE, FileFormat
from foretoken.errors import DataError, did_you_mean
from foretoken.options import flatten

UsableRow = tuple[str, Mapping[str, Any]]  # where, and the values by column
Row = tuple[str, Mapping[str, Any] | DataError]  # or the error of an unusable row
MOST_ROWS = 10_000_000  # of a compressed table; each takes a few hundred bytes
CHOICES = "choices"
CANDIDATE_COLUMNS, ANSWER = ("query", "candidates", "supports"), "answer"
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
_FIXED = (CHOICES, *CANDIDATE_COLUMNS, ANSWER, QUESTION, CONTEXT, ANSWERS)
_NAMED = " (--text-column and --label-column, in a recipe data.text_column and data.label_column, name others)"
OPTIONAL = ("id",)  # columns that are read if they exist
V = TypeVar("V")
MOST_LISTED = 1000  # bad rows in a record
ERROR, DROP = "error", "drop"  # policies for unusable rows
_log = logging.getLogger(__name__)
_AS_DETECTED = FileFormat()


@dataclass(frozen=True)
class BadRow:
    """An unusable row: its number in its source, from 0, its id, its place, and the reason."""

    number: int
    id: str
    where: str
    reason: str


class UsedIds:
    """The ids of earlier rows, as hashes of 8 bytes: 5 million rows take 40 MB.

    >>> used = UsedIds()
    >>> used.add(["a", "b"]), used.add(["c", "a"])
    ([False, False], [False, True])
    """

    def __init__(self) -> None:
        self._sorted: Any = None  # an array

    def add(self, ids: Sequence[str]) -> list[bool]:
        """Add different ids, and return for each whether it was added before."""
        import numpy as np  # here, so that the help of a command does not import it

        digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in ids)
        numbers = np.frombuffer(digests, dtype=np.uint64)
        known = np.empty(0, np.uint64) if self._sorted is None else self._sorted
        before = np.searchsorted(known, numbers, "right") > np.searchsorted(known, numbers)
        added = np.sort(numbers[~before])
        self._sorted = np.insert(known, np.searchsorted(known, added), added)
        return before.tolist()  # type: ignore[no-any-return]


@dataclass
class BadRows:
    """The unusable rows of a source, and the policy for them.

    Attributes:
        policy: ``error`` to raise an error that names the first, ``drop`` to leave them out.
        remedy: the option that leaves them out, for the error; None if there is none.
        rows: the rows that were left out.
        total: number of rows read, including these.
        start: number of rows in earlier pieces of the source.
        used_ids: ids of the earlier pieces; None if the source is read at once.
    """

    policy: str = ERROR
    remedy: str | None = None
    rows: list[BadRow] = field(default_factory=list)
    total: int = 0
    start: int = 0
    used_ids: UsedIds | None = None

    def set_aside(self, rows: Sequence[BadRow], count: int) -> None:
        """Add the unusable rows among ``count`` rows.

        Raises:
            DataError: the policy is ``error``, and there are any.
        """
        total = self.start + count
        if rows and self.policy == ERROR:
            said = f"; {len(rows):,} of {total:,} rows are not usable" if total > 1 else ""
            remedy = f", {self.remedy} leaves them out" if self.remedy and len(rows) < total else ""
            raise DataError(f"{rows[0].reason}{said}{remedy}")
        self.rows += rows
        self.total += count

    def summary(self) -> dict[str, Any]:
        """Return the record's entry on the rows that were left out, and log it; empty if there are none."""
        if not self.rows:
            return {}
        reasons = shown([row.reason for row in self.rows])
        _log.warning(
            "left out %s of %s rows that are not usable: %s", f"{len(self.rows):,}", f"{self.total:,}", reasons
        )
        listed = [asdict(row) for row in self.rows[:MOST_LISTED]]
        return {"bad_rows": {"count": len(self.rows), "of": self.total, "rows": listed}}


@dataclass(frozen=True)
class ColumnNames:
    """The columns to read of a table; ``label`` is None for rows to predict.

    ``bad_rows`` collects unusable rows; ``check`` raises a DataError for an unusable example. For tagged words,
    ``text`` and ``label`` are the columns of words and tags, with defaults if they are to be found, ``sentence`` is the
    column of sentences and ``scheme`` the tag scheme; ``is_exact`` is False for the columns of training, which other
    files may lack.

    >>> ColumnNames("question", "answer", problem="multiple-choice").needed
    ['question', 'answer', 'choices']
    """

    text: str = "text"
    label: str | None = "label"
    text_pair: str | None = None
    problem: str = CLASSIFICATION
    format: FileFormat = _AS_DETECTED
    bad_rows: BadRows = field(default_factory=BadRows, compare=False)
    label_columns: tuple[str, ...] = ()
    label_separator: str | None = None
    sentence: str | None = None
    scheme: str = AUTO
    is_exact: bool = True
    template: Template | None = None  # `text` is then its source
    group: str | None = None
    check: Callable[[Any], object] | None = field(default=None, compare=False)

    @property
    def needed(self) -> list[str]:
        """The columns that every row must have, and those that it may lack; empty for tagged words."""
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
    """Tell whether a name is the number of a column, from 1, as in files of words and tags, which have no header."""
    return re.fullmatch("[1-9][0-9]{0,3}", name) is not None


def check_columns(where: str, columns: Collection[str], needed: Sequence[str]) -> None:
    """Raise a DataError that lists the columns if a needed one is missing, or the column of a dotted name."""
    for name in needed:
        if not isinstance(name, MayLack) and not read_names(columns, [name]):
            raise _no_column(where, name, columns)


def _no_column(where: str, name: str, columns: Collection[str]) -> DataError:
    return DataError(
        f"{where}: no column {name!r}{did_you_mean(name, columns)}; the columns are {shown(list(columns))}"
        f"{'' if name in _FIXED else _NAMED}"
    )


def picked(rows: Iterable[Row], columns: ColumnNames) -> Iterable[Row]:
    """Return the rows with the values of nested fields under dotted names, and the text of a template."""
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
    """Return the joined text of several columns; empty if all of them are."""
    texts = {name: as_text(where, values[name], name) for name in template.columns}
    if not any(map(is_readable, texts.values())):
        return ""
    required = (name for name in template.columns if not isinstance(name, MayLack))
    empty = next((name for name in required if not is_readable(texts[name])), None)
    if empty is not None:
        raise DataError(
            f"{where}: column {empty!r} has no value; remove the row, fill it in, or write {{{empty}?}} in data.text, "
            "which lets it be empty"
        )
    return template.filled(texts.__getitem__)


def usable(rows: Iterable[Row]) -> Iterator[UsableRow]:
    """Yield the rows of usable data.

    Raises:
        DataError: a row is not usable.
    """
    for where, values in rows:
        if isinstance(values, DataError):
            raise values
        yield where, values


def usable_rows(rows: Iterable[Row]) -> Iterator[Mapping[str, Any]]:
    """Return the values of the usable rows."""
    return (values for _, values in rows if not isinstance(values, DataError))


def refuse_repeated(where: str, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise a DataError if two columns have the same name and one of them is to be read."""
    repeated = next((name for name in read_names(names, [*needed, *OPTIONAL]) if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{where}: has column {repeated!r} more than once; column names must be unique")


def refuse_claim(where: str, rows: int) -> None:
    """Raise a DataError for more rows than fit into memory, as a small compressed file may claim to have."""
    if rows > MOST_ROWS:
        raise DataError(f"{where}: has {rows:,} rows, and at most {MOST_ROWS:,} are read; take fewer")


def read_each(
    rows: Iterable[tuple[str, V | DataError]], make: Callable[[str, V, int], E], columns: ColumnNames, said_of_none: str
) -> list[E]:
    """Return the examples of rows; unusable rows and those with a repeated id go to ``columns.bad_rows``.

    Args:
        rows: the place of each row, and its values or its error.
        make: function that makes an example of the place, the values and the number of a row, from 0.
        columns: columns of the source.
        said_of_none: error for a source without rows.

    Raises:
        DataError: there is no row, bad rows are errors, or no labelled row is usable.
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
    """Move examples whose ids an earlier piece of their source has to the bad rows, in place."""
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
    """Return the example with its group; without a value it has none."""
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with missing ones
        value = int(value)
    return replace(example, group=as_text(where, value, column).strip() or None)


def _id_or_number(values: object, number: int) -> str:
    value = values.get("id") if isinstance(values, Mapping) else getattr(values, "row_id", None)
    return str(number) if value is None or value == "" else str(value)


def row_id(where: str, values: Mapping[str, object], number: int) -> str:
    """Return the row's ``id``, or its number if it has none."""
    return whole(where, _id_or_number(values, number), "id")


def text_value(where: str, value: object, column: str) -> str:
    """Return a text; a DataError for any other value."""
    if value is None:
        raise DataError(f"{where}: column {column!r} has no value; remove the row or fill it in")
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r} holds {type(value).__name__}, expected text (a string)")
    return whole(where, value, column)


def filled(where: str, value: object, name: str) -> str:
    """Return a text that is not empty; a DataError for any other value."""
    text = text_value(where, value, name)
    if not is_readable(text):
        raise DataError(f"{where}: {name!r} is empty; remove the record or fill it in")
    return text


def field_of(where: str, values: object, name: str, record: str) -> object:
    """Return a field of a JSON object; a DataError if it is no object or lacks the field."""
    if not isinstance(values, Mapping) or name not in values:
        raise DataError(f"{where}: no {name!r}; expected a record of {record}")
    return values[name]


def whole(where: str, value: str, column: str) -> str:
    r"""Return a text; a DataError if it has half of a surrogate pair (``\ud83d`` alone), which no table can hold.

    JSON can escape such halves, and the command line has them for bytes that are not UTF-8.
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
