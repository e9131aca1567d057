"""The numbers of a report as CSV: one row a run, and one row for every metric of a group."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from foretoken.metrics.statistics import summary
from foretoken.report.runs.groups import TEST, VALIDATION, Group, Results
from foretoken.report.runs.records import Run

_FORMULA = ("=", "+", "-", "@")
_PARAMETERS = ("adapter", "head", "total", "trainable", "percent")
_TIMINGS = ("train_seconds", "step_seconds_median", "eval_seconds", "tokens_per_second")


def runs_csv(results: Results) -> str:
    """Return one row a run, also of those that are not counted; scores are `validation/<metric>`, `test/<metric>`."""
    chosen = {id(run) for group in results.chosen for run in group.parts}
    reasons = {id(run): reason for run, reason in results.left_out}
    settings = {id(run): group.setting for group in results.groups for run in group.parts}
    rows = []
    for run in results.runs:
        judged = {
            "counted": id(run) not in reasons,
            "chosen": id(run) in chosen,
            "reason": reasons.get(id(run), ""),
            "setting": settings.get(id(run), ""),
        }
        rows.append(_described(run) | judged | _measured(run))
    return _csv(rows)


def groups_csv(results: Results) -> str:
    """Return one row for every candidate, split and metric: number of seeds, mean, deviation, median and range."""
    chosen = {id(group) for group in results.chosen}
    rows = [
        {
            "task": group.task,
            "model": group.model,
            "method": group.label,
            "setting": group.setting,
            "chosen": id(group) in chosen,
            "seeds": " ".join(str(run.seed) for run in group.runs),
            "split": split,
            "metric": metric,
            **asdict(summary(group.values(metric, split))),
        }
        for group in results.groups
        for split in (VALIDATION, TEST)
        for metric in _metrics(group, split)
    ]
    return _csv(rows)


def _described(run: Run) -> dict[str, Any]:
    best = run.values.get("best") or {}
    return {
        "folder": run.place,
        "name": run.name,
        "status": run.status,
        "task": run.task,
        "problem": run.problem,
        "model": run.model,
        "method": run.method,
        "label": run.label,
        "seed": run.seed,
        **({} if run.fold is None else {"fold": run.fold}),
        "learning_rate": run.learning_rate,
        "num_virtual_tokens": (run.recipe.get("method") or {}).get("num_virtual_tokens"),
        "metric": run.metric,
        "best_step": best.get("step"),
        "steps": run.values.get("steps"),
    }


def _measured(run: Run) -> dict[str, Any]:
    parameters, timings = (run.values.get(name) or {} for name in ("parameters", "timings"))
    return {
        **{f"parameters/{name}": parameters.get(name) for name in _PARAMETERS},
        **{f"timings/{name}": timings.get(name) for name in _TIMINGS},
        **{f"{split}/{name}": value for split in (VALIDATION, TEST) for name, value in run.scores(split).items()},
    }


def _metrics(group: Group, split: str) -> list[str]:
    return list(dict.fromkeys(name for run in group.runs for name in run.scores(split)))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows of unlike keys; what a row does not have, or does not know, stays empty.

    A text that a spreadsheet would take for a formula, which can run programs, gets an apostrophe in front.
    """
    names = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _written(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _written(value: Any) -> Any:
    if _is_nothing(value):
        return ""
    return f"'{value}" if str(value).startswith(_FORMULA) and not isinstance(value, int | float) else value


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)
