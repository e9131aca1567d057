"""A table of a report, before it is HTML or LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BEST, SECOND = 1, 2


class Cell(NamedTuple):
    """The text of a cell, its number, and its rank in its column: best (1), second (2) or neither (0)."""

    text: str
    value: float | None = None
    rank: int = 0


@dataclass(frozen=True)
class ReportTable:
    """A table with a header, rows of cells and a caption.

    The first ``names`` columns hold words, the others numbers. ``heads`` are titles over several columns each:
    (title, number of columns).
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    names: int = 1
    heads: tuple[tuple[str, int], ...] = ()


def words(*texts: object) -> list[Cell]:
    """Return cells of plain text; None gives an empty cell.

    >>> words("lora", None)
    [Cell(text='lora', value=None, rank=0), Cell(text='', value=None, rank=0)]
    """
    return [Cell("" if text is None else str(text)) for text in texts]


def ranked(cells: Sequence[Cell], *, greater_is_better: bool, competing: Sequence[bool]) -> list[Cell]:
    """Rank the best and the second best value of a column; equal values share a rank, and the lowest has none.

    >>> cells = [Cell("a", 1.0), Cell("b", 3.0), Cell("c", 2.0)]
    >>> [cell.rank for cell in ranked(cells, greater_is_better=True, competing=[True, True, True])]
    [0, 1, 2]
    """
    entered = [may and cell.value is not None for cell, may in zip(cells, competing, strict=True)]
    values = {cell.value for cell, may in zip(cells, entered, strict=True) if may and cell.value is not None}
    marked = sorted(values, reverse=greater_is_better)[:-1][:SECOND]
    return [
        cell._replace(rank=marked.index(cell.value) + 1 if may and cell.value in marked else 0)
        for cell, may in zip(cells, entered, strict=True)
    ]
