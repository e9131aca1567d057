"""The results as a table, and the targets beside them; needs no torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
TARGETS = Path(__file__).parents[1] / "targets.json"
FOREIGN_LIMIT = 0.08  # a sample is clean while other processes take less than this share of the machine
UNITS = {"x": (1, ".2f"), "%": (100, ".1f"), "s": (1, ".3g"), "GB": (1e-9, ".2f"), "": (1, ".1e")}
NOT_SHOWN = ("title", "settings", "samples", "beside", "work", "attached", "wall_seconds", "threads")
Json = Mapping[str, Any]


def read(file: Path) -> dict[str, Any]:
    """Read a file of results."""
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values


def is_clean(sample: Sequence[float | None]) -> bool:
    """Tell whether the machine was ours during a sample (seconds, others' share, ...), as far as it is known."""
    return sample[1] is None or sample[1] < FOREIGN_LIMIT


def overhead(timing: Json) -> float:
    """Return what a candidate costs beside no adapter, as a share: the median over the rounds, each with itself.

    The machine's own pace changes more from minute to minute than one adapter differs from another. Rounds in which
    either sample was disturbed count only where there are not two others.
    """
    pairs = list(zip(timing["samples"], timing["beside"], strict=True))
    clean = [pair for pair in pairs if all(map(is_clean, pair))]
    return statistics.median(mine[0] / its[0] for mine, its in (clean if len(clean) > 1 else pairs)) - 1


def table_of(values: Json) -> str:
    """Return what a benchmark measured, as Markdown."""
    rows = [[result["title"], *row] for result in values["results"] for row in rows_of(result)]
    hardware = values["hardware"]
    threads = ", ".join(sorted({str(result["threads"]) for result in values["results"] if "threads" in result}))
    caption = f"{values['started']}, {hardware['cpu']}, {hardware['cores']} cores, threads: {threads}."
    caption += " Times in seconds: medians, how many samples were clean, and beside the first candidate."
    header = ("part", "what", "value", "clean", "beside")
    return markdown(values["benchmark"], header, rows, names=2) + f"\n{caption}\n"


def rows_of(found: Json, path: str = "", first: float | None = None) -> Iterator[list[str | None]]:
    """Yield a row for each timing, and for each other number under its path."""
    for key, value in found.items():
        place = f"{path}, {key}".lstrip(", ")
        if key in NOT_SHOWN or value is None:
            continue
        if isinstance(value, Mapping) and "samples" in value:
            first = first or value["median"]
            beside = f"{overhead(value):+.1%}" if "beside" in value else f"{first / value['median']:.2f}x"
            yield [place, f"{value['median']:.4g}", f"{value['clean']}/{len(value['samples'])}", beside]
        elif isinstance(value, Mapping):
            yield from rows_of(value, place)
        elif isinstance(value, list):
            yield from rows_of({str(number): one for number, one in enumerate(value)}, place)
        else:
            yield [place, f"{value:,.4g}" if isinstance(value, float) else str(value), None, None]


def targets_table(runs: Sequence[Json], benchmark: str | None = None) -> str:
    """Return the targets, of one benchmark or all, beside what the runs measured."""
    targets = [one for one in read(TARGETS)["targets"] if benchmark in (None, one["benchmark"])]
    rows = [target_row(one, reached(one, runs)) for one in targets]
    return markdown("Targets", ("target", "bound", "measured", "verdict"), rows)


def markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str | None]], names: int = 1) -> str:
    """Return a table whose first columns are names, and the others numbers."""
    rule = ["---"] * names + ["---:"] * (len(header) - names)
    cells = [[(cell or "").replace("|", "\\|") for cell in row] for row in (header, rule, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([f"### {title}", "", *lines, ""])


def target_row(target: Json, value: float | None) -> list[str]:
    """Return a target, its bound, what was measured and the verdict."""
    is_least = "at_least" in target
    bound = target["at_least"] if is_least else target["at_most"]
    wanted = f"{'from' if is_least else 'up to'} {written(bound, target['unit'])}"
    if value is None:
        return [target["name"], wanted, "", "not measured"]
    verdict = "reached" if (value >= bound if is_least else value <= bound) else "missed"
    return [target["name"], wanted, written(value, target["unit"]), verdict]


def written(value: float, unit: str) -> str:
    """Return a number with its unit."""
    factor, form = UNITS[unit]
    return f"{factor * value:{form}} {unit}".strip()


def reached(target: Json, runs: Sequence[Json]) -> float | None:
    """Return the value of a target in the last result that has it, or the least or most of all of them."""
    results = [
        result
        for run in sorted(runs, key=lambda run: str(run["started"]))
        if run["benchmark"] == target["benchmark"]
        for result in run["results"]
        if "error" not in result and matches(result, target["where"])
    ]
    values = [value for result in results if (value := value_of(target["value"], result)) is not None]
    choose = {"last": itemgetter(-1), "min": min, "max": max}[target.get("of", "last")]
    return choose(values) if values else None


def matches(result: Json, where: Json) -> bool:
    """Tell whether the settings, or values, of a result are the wanted ones.

    Results of before 2026-11-26 were measured with glibc's allocator as it is, and tuned.
    """
    known = {"allocator": "default", **result["settings"], **result}
    return all(known.get(name) == value for name, value in where.items())


def value_of(expression: str, result: Json) -> float | None:
    """Return an expression of targets.json over the names in a result; None where the result does not have them."""
    known = {"__builtins__": {}, "max": max, "min": min, "sum": sum, "overhead": overhead}
    try:
        return float(eval(expression, {**known, **result}))
    except (KeyError, NameError, ValueError, TypeError):
        return None
