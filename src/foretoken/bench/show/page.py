"""The report of one or more runs: Markdown with the targets on top, and a plot."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretoken.bench import BENCHMARKS
from foretoken.bench.show.charts import draw
from foretoken.bench.show.numbers import Result
from foretoken.bench.show.sections import SECTIONS
from foretoken.bench.show.targets import targets_table
from foretoken.errors import DataError
from foretoken.files import write_text
from foretoken.outputs import refuse_foreign
from foretoken.report.render.table import markdown as table_markdown

log = logging.getLogger(__name__)
FORMAT = 1
TITLE = "# Benchmarks"


def read_results(file: Path) -> dict[str, Any]:
    """Read a file of results.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {file}: {error}; give a file that foretoken bench wrote") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT or values.get("benchmark") not in BENCHMARKS:
        raise DataError(f"{file} does not hold results of foretoken bench; give a .json file that it wrote")
    try:
        markdown([values])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise DataError(f"{file} lacks something ({error!r}); was it changed by hand? Measure again") from error
    return values


def present(runs: Sequence[Mapping[str, Any]], stem: Path) -> str:
    """Write ``stem``.md and ``stem``.png, and return the Markdown.

    Raises:
        SaveError: they cannot be written, or others have these names.
    """
    text = markdown(runs)
    page, picture = (stem.with_name(stem.name + ending) for ending in (".md", ".png"))
    refuse_foreign(page, TITLE, beside=[picture])
    charts = [chart for run in runs for chart in SECTIONS[run["benchmark"]](run["results"]).charts]
    has_picture = draw(charts, picture)
    write_text(page, text + (f"\n![plot]({picture.name})\n" if has_picture else ""))
    log.info("report: %s%s", page, f", {picture}" if has_picture else "")
    return text


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole report."""
    merged: dict[str, list[Result]] = {}
    for run in sorted(runs, key=lambda run: run["started"]):
        merged.setdefault(run["benchmark"], []).extend(run["results"])
    parts = [f"{TITLE}\n", table_markdown(targets_table(merged)).replace("###", "##", 1)]
    return "\n".join([*parts, *(chapter(run) for run in runs)])


def chapter(run: Mapping[str, Any]) -> str:
    """Return one run: where and when it was, its tables, what went wrong."""
    tables = [table_markdown(table) for table in SECTIONS[run["benchmark"]](run["results"]).tables if table.rows]
    problems = [
        f"- {result['title']}: **failed**: {result.get('error') or result['failed']}"
        for result in run["results"]
        if "error" in result or result.get("failed")
    ]
    wrong = ["### Failed\n\n" + "\n".join(problems) + "\n"] if problems else []
    return "\n".join([f"## {run['benchmark']}\n", circumstances(run), *tables, *wrong])


def circumstances(run: Mapping[str, Any]) -> str:
    """Return the machine, the versions, the date and how the run ended."""
    hardware = run["hardware"]
    threads = sorted({result["threads"] for result in run["results"] if "threads" in result})
    machine = [
        f"{hardware['cpu']}, {hardware['cores']} cores",
        f"{', '.join(map(str, threads))} threads",
        f"GPU {hardware['gpu']}" if hardware.get("gpu") else "no GPU",
        hardware["system"],
    ]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    limits = sorted(
        {f"{result['dtype']} {result['limit']['flops_per_second'] / 1e9:.0f} GFLOP/s" for result in best_limits(run)}
    )
    lines = [f"- {run['started']}, {run['status']}", f"- {', '.join(machine)}", f"- {versions}"]
    return "\n".join([*lines, *([f"- fastest matrix product: {', '.join(limits)}"] if limits else []), ""])


def best_limits(run: Mapping[str, Any]) -> list[Result]:
    """Return, for each type, the part in which the machine multiplied fastest."""
    best: dict[str, Result] = {}
    for result in run["results"]:
        if "limit" in result:
            now = best.get(result["dtype"])
            if now is None or result["limit"]["flops_per_second"] > now["limit"]["flops_per_second"]:
                best[result["dtype"]] = result
    return list(best.values())
