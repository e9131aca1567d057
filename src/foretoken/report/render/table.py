"""A table of a report, before it is HTML, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

BEST, SECOND = 1, 2
_MARKDOWN_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|$~#"} | {"&": "&amp;", "\n": " "})


class Cell(NamedTuple):
    """What a cell says, the number it stands for, and whether that is the best (1) or second (2) of its column."""

    text: str
    value: float | None = None
    rank: int = 0


@dataclass(frozen=True)
class Table:
    """A head, rows of as many cells, and what has to be known to read them.

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
    """Return cells of plain text; None is empty.

    >>> words("lora", None)
    [Cell(text='lora', value=None, rank=0), Cell(text='', value=None, rank=0)]
    """
    return [Cell("" if text is None else str(text)) for text in texts]


def ranked(cells: Sequence[Cell], *, greater_is_better: bool, competing: Sequence[bool]) -> list[Cell]:
    """Mark the best and the second best value of a column, ties alike; where all are alike, nothing is best.

    The last place is never marked as the second best.

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


def markdown(table: Table) -> str:
    r"""Return the table for Markdown; the best is bold, the second best in italics.

    >>> print(markdown(Table("Scores", ("Method", "F1"), ((Cell("a_b"), Cell("80.1", 0.801, 1)),))))
    ### Scores
    <BLANKLINE>
    | Method | F1 |
    | --- | ---: |
    | a\_b | **80.1** |
    <BLANKLINE>
    """
    flat = spelled_out(table)
    rule = ["---"] * table.names + ["---:"] * (len(table.header) - table.names)
    lines = [_line(escape_markdown(name) for name in flat.header), _line(rule)]
    lines += [_line(_marked(cell) for cell in row) for row in table.rows]
    caption = f"\n{escape_markdown(table.caption)}\n" if table.caption else ""
    return f"### {escape_markdown(table.title)}\n\n" + "\n".join(lines) + "\n" + caption


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it is.

    >>> print(escape_markdown("a|b <i>"))
    a\|b \<i\>
    """
    return text.translate(_MARKDOWN_SPECIAL)


def spelled_out(table: Table) -> Table:
    """Return the table with one head: the titles over several columns go into each."""
    if not table.heads:
        return table
    over = [title for title, columns in table.heads for _ in range(columns)]
    joined = [f"{title}: {name}" if title else name for title, name in zip(over, table.header, strict=True)]
    return replace(table, header=tuple(joined), heads=())


def _marked(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return {BEST: f"**{text}**", SECOND: f"*{text}*"}.get(cell.rank, text)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
