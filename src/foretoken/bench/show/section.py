"""What every section of the report is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from foretoken.bench.show.charts import Chart
from foretoken.bench.show.numbers import Result, Results
from foretoken.report.render.table import Table, words


class Section(NamedTuple):
    """The tables and charts of one benchmark."""

    tables: list[Table]
    charts: list[Chart]


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    """Return a table of texts."""
    return Table(title, tuple(header), tuple(tuple(words(*row)) for row in rows), note, names=len(header))


def said(value: float | None, write: Callable[[float], str]) -> str:
    """Return a number as text; nothing for none."""
    return "" if value is None else write(value)


def capitalised(text: str) -> str:
    """Return a title with a capital."""
    return text[:1].upper() + text[1:]


def lines(results: Results, mode: str, label: Callable[[Result, str], str]) -> dict[str, list[tuple[float, float]]]:
    """Return medians by length, one line per label."""
    found: dict[str, dict[int, float]] = {}
    for result in results:
        for name, timing in result["timings"][mode].items():
            found.setdefault(label(result, name), {})[result["settings"]["n"]] = timing["median"]
    return {name: sorted(points.items()) for name, points in found.items()}
