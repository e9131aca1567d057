"""A small table of rows to predict, which spares the slow import of `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Table(Protocol):
    """The interface of a table for reading columns; `datasets.Dataset` has it."""

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a column."""


class PlainTable:
    """Columns of equal length.

    >>> PlainTable({"id": ["1"], "text": ["see you at lunch"]})["text"]
    ['see you at lunch']
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str, /) -> list[Any]:
        """Return a column."""
        return self._columns[name]

    def select(self, rows: Sequence[int]) -> PlainTable:
        """Return these rows."""
        return PlainTable({name: [values[row] for row in rows] for name, values in self._columns.items()})
