"""The results that a table asks for, and how numbers are written in it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.bench.measure import FOREIGN_LIMIT

Result = Mapping[str, Any]
Results = Sequence[Result]


def done(results: Results, **wanted: Any) -> list[Mapping[str, Any]]:
    """Return the parts without an error whose values, or settings, are the wanted ones.

    >>> done([{"dtype": "float32", "settings": {"n": 64}}, {"error": "memory"}], n=64)
    [{'dtype': 'float32', 'settings': {'n': 64}}]
    """
    return [
        result
        for result in results
        if "error" not in result
        and all({**result["settings"], **result}.get(name) == value for name, value in wanted.items())
    ]


def seconds(value: float) -> str:
    """Return a time with three digits, in the unit that reads well.

    >>> seconds(0.0123), seconds(12.34)
    ('12.3 ms', '12.3 s')
    """
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def times(value: float) -> str:
    """Return a ratio: ``3.41x``."""
    return f"{value:.2f}x"


def percent(value: float) -> str:
    """Return a share: ``+3.2 %`` for 0.032."""
    return f"{100 * value:+.1f} %"


def megabytes(value: float) -> str:
    """Return bytes as MB."""
    return f"{value / 1e6:,.0f} MB"


def gigabytes(value: float) -> str:
    """Return bytes as GB.

    >>> gigabytes(2.34e9)
    '2.3 GB'
    """
    return f"{value / 1e9:.1f} GB"


def exponent(value: float) -> str:
    """Return a small number: ``2.4e-07``."""
    return f"{value:.1e}"


def turns(timing: Mapping[str, Any]) -> str:
    """Return how many samples were clean, of how many."""
    return f"{timing['clean']}/{len(timing['samples'])}"


def ratio(timings: Mapping[str, Any], name: str, base: str) -> float | None:
    """Return how many times a candidate's median fits into the base's; None where one of them is missing."""
    if name not in timings or base not in timings:
        return None
    return timings[base]["median"] / timings[name]["median"]


def overhead(timings: Mapping[str, Any], name: str) -> float | None:
    """Return what a candidate costs beside no adapter, as a share: the median over the rounds, each with itself.

    The machine's own pace changes more from minute to minute than one adapter differs from another. Rounds in which
    either sample was disturbed count only where there are not two others.

    >>> samples = {"samples": [[2.1, 0.0], [4.4, 0.0], [9.0, 0.6]], "beside": [[2.0, 0.0], [4.0, 0.0], [2.0, 0.0]]}
    >>> round(overhead({"lora": samples}, "lora"), 3)
    0.075
    """
    if name not in timings:
        return None
    pairs = list(zip(timings[name]["samples"], timings[name]["beside"], strict=True))
    clean = [pair for pair in pairs if all(foreign is None or foreign < FOREIGN_LIMIT for _, foreign in pair)]
    return statistics.median(mine / its for (mine, _), (its, _) in (clean if len(clean) > 1 else pairs)) - 1
