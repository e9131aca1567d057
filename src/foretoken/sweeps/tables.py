"""What a sweep shows: its progress while it runs, its result at the end. Rows of text; drawing is the console's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretoken.sweeps.naming import params_label
from foretoken.sweeps.plan import Plan
from foretoken.sweeps.run_table import FAILED, HELD, PRUNED, UNMEASURED, Row
from foretoken.sweeps.status import ENDED, Standing, measured_metrics, summary

PROGRESS = ("contestant", "done", "best so far", "running", "failed", "pruned", "time left")
RESULT = ("contestant", "selected", "metric", "validation", "test", "seeds", "failed", "pruned")
PLANNED = ("contestant", "candidates", "seeds", "runs of the search", "runs after it")


def progress_rows(found: Sequence[Standing]) -> list[list[str]]:
    """Return one line per contestant: runs done, the best mean so far, states, and time left at the present pace."""
    return [_progress(item, workers=_workers(found)) for item in found]


def result_rows(found: Sequence[Standing]) -> list[list[str]]:
    """Return one line per contestant: what was selected, and its results as mean and deviation over the seeds."""
    return [_result(item) for item in found]


def planned_rows(plan: Plan, sizes: Mapping[str, int]) -> list[list[str]]:
    """Return one line per contestant: what would run. `sizes` has the number of candidates of each."""
    rows = []
    for item in plan.contestants:
        size, seeds, searched = sizes[item.name], len(item.seeds), len(item.search_seeds)
        rows.append([item.name, *map(str, (size, seeds, size * searched, seeds - searched))])
    return rows


def runs_in_all(item: Standing) -> int:
    """Return how many runs a contestant will have had, as far as one knows: none of them pruned or failed."""
    seeds, searched = len(item.contestant.seeds), len(item.contestant.search_seeds)
    to_come = (item.expected - len(item.candidates)) * searched
    return len(item.wanted) + to_come + (0 if item.search_is_over else seeds - searched)


def done(item: Standing) -> int:
    """Return how many runs of a contestant have ended."""
    return sum(row.state in ENDED for row in item.wanted)


def mean_and_std(values: Mapping[str, Any] | None) -> str:
    """Say a mean with its deviation.

    >>> mean_and_std({"mean": 0.75, "std": 0.02})
    '0.7500 ± 0.0200'
    """
    if values is None:
        return "-"
    return f"{values['mean']:.4f}" + ("" if values["std"] is None else f" ± {values['std']:.4f}")


def duration(seconds: float) -> str:
    """Say how long something takes.

    >>> duration(59), duration(3700), duration(200000)
    ('59 s', '1 h 01 min', '55 h 33 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _progress(item: Standing, *, workers: int) -> list[str]:
    counts, best = item.counts, item.best
    held = sum(counts.get(state, 0) for state in HELD)
    failed = counts.get(FAILED, 0) + counts.get(UNMEASURED, 0)
    said = "-" if best is None else f"{best.score:.4f} ({params_label(best.params, digits=4) or 'no search'})"
    numbers = [str(number) for number in (held, failed, counts.get(PRUNED, 0))]
    return [item.contestant.name, f"{done(item)}/{runs_in_all(item)}", said, *numbers, _time_left(item, workers)]


def _result(item: Standing) -> list[str]:
    chosen, metric, counts = item.selected, item.contestant.metric, item.counts
    numbers = [str(counts.get(FAILED, 0) + counts.get(UNMEASURED, 0)), str(counts.get(PRUNED, 0))]
    if chosen is None:
        return [item.contestant.name, "none" if item.search_is_over else "open", metric, "-", "-", "0", *numbers]
    scored = {seed: row.validation[metric] for seed, row in chosen.rows.items() if row.validation}
    measured = measured_metrics(chosen).get(metric)
    name = params_label(chosen.params, digits=4) or "-"
    seeds = "0" if measured is None else str(len(measured["seeds"]))
    return [item.contestant.name, name, metric, mean_and_std(summary(scored)), mean_and_std(measured), seeds, *numbers]


def _workers(found: Sequence[Standing]) -> int:
    return max(1, sum(row.state in HELD for item in found for row in item.wanted))


def _time_left(item: Standing, workers: int) -> str:
    took = [row.seconds for row in item.wanted if row.state in ENDED and row.seconds]
    left = runs_in_all(item) - done(item)
    return duration(left * sum(took) / len(took) / workers) if took and left else "-"


def broken_lines(rows: Sequence[Row]) -> list[str]:
    """Return one line per error, with the runs that ended by it.

    >>> broken_lines([Row("a", {}, error="no such file"), Row("b", {}, error="no such file")])
    ['no such file: a, b']
    """
    by_error: dict[str, list[str]] = {}
    for row in rows:
        by_error.setdefault(row.error or "no reason is known", []).append(row.run)
    return [f"{error}: {', '.join(runs)}" for error, runs in by_error.items()]
