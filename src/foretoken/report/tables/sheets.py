"""The numbers of a report as CSV: one row per run, with all keys of its recipe and all metrics."""

from __future__ import annotations

import csv
import io
from typing import Any

from foretoken.options import flatten
from foretoken.report.runs.groups import TEST, VALIDATION, Results
from foretoken.report.runs.records import Run

_FORMULA = ("=", "+", "-", "@")


def runs_csv(results: Results) -> str:
    """Return one row per run, including those that are not counted; missing values are empty.

    Keys of the recipe have their dotted names, scores are `validation/<metric>` and `test/<metric>`, and the rest is
    `best/`, `parameters/` and `timings/`. A text that a spreadsheet would read as a formula, which can run programs,
    gets an apostrophe in front.
    """
    chosen = {id(run) for group in results.chosen for run in group.parts}
    reasons = {id(run): reason for run, reason in results.left_out}
    rows = []
    for run in results.runs:
        judged = {"counted": id(run) not in reasons, "chosen": id(run) in chosen, "reason": reasons.get(id(run), "")}
        described = _described(run) | judged
        keys = {key: value for key, value in flatten(run.recipe).items() if key not in described}
        rows.append(described | keys | _measured(run))
    written = [{key: _written(value) for key, value in row.items() if not _is_nothing(value)} for row in rows]
    text = io.StringIO()
    names = {_written(key): None for row in written for key in row}
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({_written(key): value for key, value in row.items()} for row in written)
    return text.getvalue()


def _described(run: Run) -> dict[str, Any]:
    return {
        "folder": run.place,
        "run": run.name,
        "status": run.status,
        "task": run.task,
        "problem": run.problem,
        "label": run.label,
        "metric": run.metric,
        "steps": run.values.get("steps"),
    }


def _measured(run: Run) -> dict[str, Any]:
    groups = {name: run.values.get(name) or {} for name in ("best", "parameters", "timings")}
    groups |= {split: run.scores(split) for split in (VALIDATION, TEST)}
    return {f"{name}/{key}": value for name, values in groups.items() for key, value in values.items()}


def _written(value: Any) -> Any:
    return f"'{value}" if str(value).startswith(_FORMULA) and not isinstance(value, int | float) else value


def _is_nothing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and value != value)
