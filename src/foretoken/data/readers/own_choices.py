"""The user's own multiple-choice questions: one row each, with a list of choices and the right one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from foretoken.data.columns import CHOICES, Columns
from foretoken.data.documents import refuse_repeated_ids
from foretoken.data.examples import Choices
from foretoken.data.readers.rows import Row, row_id, text_value
from foretoken.errors import DataError


def choices_from_rows(source: Path | str, rows: Iterable[Row], columns: Columns) -> list[Choices]:
    """Return checked questions; the label is the number of the right choice, from 0, or its text.

    Raises:
        DataError: no rows, fewer than two choices, an empty text, a label that is none of the choices.
    """
    examples = [_question(where, values, number, columns) for number, (where, values) in enumerate(rows)]
    if not examples:
        raise DataError(f"{source}: has no questions; expected at least one row of data")
    refuse_repeated_ids(examples)
    return examples


def _question(where: str, values: Mapping[str, Any], number: int, columns: Columns) -> Choices:
    text = text_value(where, values[columns.text], columns.text)
    if not text.strip():
        raise DataError(f"{where}: the question is empty; fill in column {columns.text!r} or remove the row")
    choices = _texts(where, values[CHOICES])
    answer = 0 if columns.label is None else _answer(where, values[columns.label], choices, columns.label)
    return Choices(row_id(where, values, number), text, choices, answer, where)


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        raise DataError(
            f"{where}: column {CHOICES!r} holds {value!r}, expected a list of at least two texts "
            "(jsonl, json and parquet files can hold lists)"
        )
    choices = tuple(text_value(where, choice, CHOICES) for choice in value)
    if not all(choice.strip() for choice in choices):
        raise DataError(f"{where}: column {CHOICES!r} holds an empty choice; every choice needs a text")
    return choices


def _answer(where: str, value: Any, choices: tuple[str, ...], column: str) -> int:
    """Return the number of the right choice, which is given by its number from 0 or by its text."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return value
    if isinstance(value, str) and choices.count(value) == 1:
        return choices.index(value)
    raise DataError(
        f"{where}: column {column!r} holds {value!r}, expected the number of the right choice "
        f"(0 to {len(choices) - 1}) or its text, one of {', '.join(map(repr, choices))}"
    )
