"""Your own source and target texts: csv, tsv, jsonl, json and parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretoken.data.documents import refuse_repeated_ids
from foretoken.data.examples import Generation
from foretoken.data.readers.files import local_path
from foretoken.data.readers.rows import Row, row_id, text_value
from foretoken.data.readers.tables import read_rows
from foretoken.errors import DataError


def read_generation(path: str | Path, source_column: str = "source", target_column: str = "target") -> list[Generation]:
    r"""Return the examples of one file; a target is a text, or a list of texts that are all right.

    Raises:
        DataError: the file, a row or a value is not usable; the message names file and line.

    >>> file = getfixture("tmp_path") / "mine.jsonl"
    >>> _ = file.write_text('{"source": "name[Aromi]", "target": ["Aromi is a pub.", "A pub is Aromi."]}\n')
    >>> read_generation(file)[0].references
    ('Aromi is a pub.', 'A pub is Aromi.')
    """
    path = local_path(path)
    if source_column == target_column:
        raise DataError(f"{path}: source and target are both column {source_column!r}; they must differ")
    rows = read_rows(path, (source_column, target_column))
    examples = [_example(number, row, source_column, target_column) for number, row in enumerate(rows)]
    if not examples:
        raise DataError(f"{path}: has no rows; expected at least one source with its target")
    refuse_repeated_ids(examples)
    return examples


def _example(number: int, row: Row, source_column: str, target_column: str) -> Generation:
    where, values = row
    source = filled(where, values[source_column], source_column)
    return Generation(
        row_id(where, values, number), source, _targets(where, values[target_column], target_column), where
    )


def _targets(where: str, value: Any, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (filled(where, value, column),)
    if not value:
        raise DataError(f"{where}: column {column!r} holds an empty list, expected at least one text")
    return tuple(filled(where, text, column) for text in value)


def filled(where: str, value: Any, name: str) -> str:
    """Return a text that is more than white space.

    Raises:
        DataError: it is empty, or no text.
    """
    text = text_value(where, value, name)
    if not text.strip():
        raise DataError(f"{where}: {name!r} is empty; remove the record or fill it in")
    return text
