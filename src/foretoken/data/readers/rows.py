"""From rows (where, column values) to documents: the checks that every tabular source shares."""

from __future__ import annotations

import ast
import json
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from foretoken.data.documents import Document, E, is_empty, is_readable, refuse_repeated_id, repeated_id, shown
from foretoken.data.fields import ABSENT, MayLack, Template, as_text, at, read_names
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.data.readers.encodings import AUTO, BAD_BYTE
from foretoken.data.readers.formats import FileFormat
from foretoken.data.readers.notes import note
from foretoken.errors import DataError, did_you_mean
from foretoken.options import flatten

_log = logging.getLogger(__name__)
UsableRow = tuple[str, Mapping[str, Any]]  # where, and the values by column
Row = tuple[str, Mapping[str, Any] | DataError]  # or why this row is not usable; those behind it can be read
MOST_LISTED = 1000  # bad rows in a record
MOST_ROWS = 10_000_000  # of a compressed table; each takes a few hundred bytes
CHOICES = "choices"
CANDIDATE_COLUMNS, ANSWER = ("query", "candidates", "supports"), "answer"
QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
_FIXED = (CHOICES, *CANDIDATE_COLUMNS, ANSWER, QUESTION, CONTEXT, ANSWERS)
_NAMED = " (in your own data, text_column and label_column may name others)"
OPTIONAL = ("id",)  # columns that are read where they are
ERROR, DROP = "error", "drop"  # what rows that are not usable come to
_SEPARATORS = (";", "|", ",", "\n", "\t")  # that may stand between the labels of one column
_ABSENT, _PRESENT = ("0", "0.0", "false", "no"), ("1", "1.0", "true", "yes")  # what columns of one label each hold
V = TypeVar("V")


@dataclass(frozen=True)
class BadRow:
    """A row that is not usable: its number among all of its source, from 0, its id, where it is, and why."""

    number: int
    id: str
    where: str
    reason: str


class UsedIds:
    """The ids of the rows so far, 8 bytes of each: of 5 million rows they take 40 MB.

    >>> used = UsedIds()
    >>> used.add(["a", "b"]), used.add(["c", "a"])
    ([False, False], [False, True])
    """

    def __init__(self) -> None:
        self._sorted: list[Any] = []  # each at least twice as long as the next

    def add(self, ids: Sequence[str]) -> list[bool]:
        """Take ids that differ from each other, and tell for each whether it was there before."""
        import numpy as np  # not above: the help of a command needs none

        digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in ids)
        numbers = np.frombuffer(digests, dtype=np.uint64)
        before = np.zeros(len(numbers), dtype=bool)
        for known in self._sorted:
            before |= known[np.searchsorted(known, numbers).clip(max=len(known) - 1)] == numbers
        self._sorted.append(np.sort(numbers[~before]))
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            self._sorted[-2:] = [np.sort(np.concatenate(self._sorted[-2:]))]
        self._sorted = [known for known in self._sorted if len(known)]
        return [bool(is_known) for is_known in before]


@dataclass
class BadRows:
    """The rows that are not usable: an error that names the first, or set aside.

    Attributes:
        policy: ``error`` or ``drop``.
        remedy: the option that sets them aside, for the error; None where there is none.
        rows: those that were set aside.
        total: how many rows were read, with them.
        start: how many rows of their source are in earlier pieces of it.
        used_ids: of the earlier pieces; None: the source is read at once.
    """

    policy: str = ERROR
    remedy: str | None = None
    rows: list[BadRow] = field(default_factory=list)
    total: int = 0
    start: int = 0
    used_ids: UsedIds | None = None

    def set_aside(self, rows: Sequence[BadRow], count: int) -> None:
        """Take the bad ones of so many rows of a source.

        Raises:
            DataError: they are an error, or there are no others.
        """
        total = self.start + count
        if rows and self.policy == ERROR:
            said = f"; {len(rows):,} of {total:,} rows are not usable" if total > 1 else ""
            remedy = f", {self.remedy} leaves them out" if self.remedy and len(rows) < total else ""
            raise DataError(f"{rows[0].reason}{said}{remedy}")
        self.rows += rows
        self.total += count

    def summary(self) -> dict[str, Any]:
        """Return what a record says of the rows that were set aside, and log it; an empty one where there are none."""
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
        if self.problem == TOKEN_CLASSIFICATION:
            return []
        if self.problem == QUESTION_ANSWERING:
            return [QUESTION, CONTEXT] if self.label is None else [QUESTION, CONTEXT, ANSWERS]
        if self.problem == CANDIDATES:
            return [*CANDIDATE_COLUMNS, *([] if self.label is None else [ANSWER])]
        choices = CHOICES if self.problem == MULTIPLE_CHOICE else None
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


def documents_from_rows(source: Path | str, rows: Iterable[Row], columns: ColumnNames) -> list[Document]:
    """Return checked documents; the column ``id`` is used where there is one, else the row's number.

    Raises:
        DataError: no rows, or one with a missing value, a text that is no string, a label that is no number where the
            problem is regression, an empty text, a repeated id.
    """
    none = f"{source}: has no documents; expected at least one row of data"
    return read_each(rows, partial(_document, columns), columns, none)


def _document(columns: ColumnNames, where: str, values: Mapping[str, object], number: int) -> Document:
    label, problem = columns.label, columns.problem
    return not_empty(
        Document(
            id=row_id(where, values, number),
            text=text_value(where, values[columns.text], columns.text),
            text_pair=columns.text_pair and text_value(where, values[columns.text_pair], columns.text_pair),
            label=_one_label(where, values[label], label) if label is not None and problem == CLASSIFICATION else None,
            value=label_numbers(columns, where, values) if label is not None and problem == REGRESSION else None,
            labels=labels_of_row(columns, where, values) if label is not None and problem == MULTI_LABEL else None,
            where=where,
        )
    )


def not_empty(document: Document) -> Document:
    """Return a document that has text; DataError for any other."""
    if is_empty(document):
        raise DataError(f"{document.where}: the document is empty, id {document.id!r}; fill in its text, or remove it")
    return document


def _id_or_number(values: object, number: int) -> str:
    value = values.get("id") if isinstance(values, Mapping) else getattr(values, "row_id", None)
    return str(number) if value is None or value == "" else str(value)


def row_id(where: str, values: Mapping[str, object], number: int) -> str:
    """Return the row's ``id``, or its number where it has none."""
    return _whole(where, _id_or_number(values, number), "id")


def text_value(where: str, value: object, column: str) -> str:
    """Return a text; DataError for anything else."""
    if value is None:
        raise DataError(f"{where}: column {column!r} has no value; remove the row or fill it in")
    if not isinstance(value, str):
        raise DataError(f"{where}: column {column!r} holds {type(value).__name__}, expected text (a string)")
    return _whole(where, value, column)


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
            "the text where it was cut, or name the encoding with data.encoding"
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
    raise DataError(f"{where}: column {column!r} holds {value!r:.80}, expected one class name or number per document")


def _one_label(where: str, value: object, column: str) -> str:
    """Return the label that a value is, or the only one of a list."""
    items = written_list(value.strip()) if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return label_name(where, value, column)
    if len(items) > 1:
        raise DataError(
            f"{where}: column {column!r} holds {value!r:.80}, expected one class name or number per document; for "
            f"several set problem: {MULTI_LABEL}"
        )
    return label_name(where, next(iter(items), None), column)


def labels_of_row(columns: ColumnNames, where: str, values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the labels of a row, each once; a row may have none.

    They are those of the columns that hold 1, or in one column a list, a list written as text, or a text with a
    separator.

    >>> columns = ColumnNames(label="topics", problem="multi-label-classification", label_separator=";")
    >>> labels_of_row(columns, "x.csv:2", {"topics": "grain; corn;"}), labels_of_row(columns, "x.csv:3", {"topics": ""})
    (('grain', 'corn'), ())
    >>> labels_of_row(columns, "x.csv:4", {"topics": "['cs.LG', 'cs.CV']"})
    ('cs.LG', 'cs.CV')
    """
    if columns.label_columns:
        return tuple(name for name in columns.label_columns if _is_set(where, values[name], name))
    name = str(columns.label)
    items = _label_items(where, values[name], name, columns.label_separator)
    return tuple(dict.fromkeys(label_name(where, item, name) for item in items))


def _is_set(where: str, value: object, column: str) -> bool:
    word = "" if value is None else str(value).strip().casefold()
    if word in _ABSENT or word in _PRESENT:
        return word in _PRESENT
    raise DataError(f"{where}: column {column!r} holds {value!r:.80}, expected 0 or 1: it is one of label_columns")


def _label_items(where: str, value: Any, column: str, separator: str | None) -> Sequence[object]:
    if value is None or value != value:
        return ()
    if isinstance(value, list | tuple):
        return value
    if not isinstance(value, str):
        return (value,)
    text = value.strip()
    if (items := written_list(text)) is not None:
        return items
    if separator is not None:
        return [item for item in text.split(separator) if item.strip()]
    sign = next((sign for sign in _SEPARATORS if sign in text), None)
    if sign is not None:
        raise DataError(
            f"{where}: column {column!r} holds {text!r:.80}, which may be several labels; say what stands between "
            f"them, as in data.label_separator: {sign!r} (a sign that no label has, where it is one label)"
        )
    return (text,) if text else ()


def written_list(text: str) -> list[object] | None:
    """Return the list of labels that a text is, as JSON or as Python writes it; None for any other text."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            items = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return items if isinstance(items, list) else None
    return None


def label_numbers(columns: ColumnNames, where: str, values: Mapping[str, object]) -> float | tuple[float, ...]:
    """Return the number that a row's label is, or those of its label columns."""
    if columns.label_columns:
        return tuple(label_value(where, values[name], name) for name in columns.label_columns)
    return label_value(where, values[str(columns.label)], str(columns.label))


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
        several = "several numbers have a column each: data.label_columns"
        hint = several if isinstance(value, list) else "with a decimal comma: data.format.decimal"
        raise DataError(f"{where}: column {column!r} holds {value!r:.80}, expected a number ({hint})")
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
    """Return the class name of a class number, or those of a list of them; any other value unchanged.

    Raises:
        DataError: a number outside the classes (-1 marks documents without a label).
    """
    if names is not None and isinstance(value, list):
        return [names_of_labels(where, item, names) for item in value]
    if names is None or not isinstance(value, int):
        return value
    if not 0 <= value < len(names):
        raise DataError(
            f"{where}: class number {value} is not among the {len(names)} classes; documents without a "
            "label (-1) "
            "can be neither trained on nor scored"
        )
    return names[value]


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of classes by column, of columns of class numbers and of lists of them."""
    items = {column: getattr(feature, "feature", feature) for column, feature in features.items()}
    return {column: [*item.names] for column, item in items.items() if getattr(item, "names", None)}


def named_row(where: str, values: Mapping[str, object], names: Mapping[str, Sequence[str]]) -> Row:
    """Return the row with class names in place of the class numbers of these columns."""
    try:
        return where, {name: names_of_labels(where, value, names.get(name)) for name, value in values.items()}
    except DataError as error:
        return where, error
