"""The tables of a sweep: the plan, the progress (on stderr), and the result."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from foretoken.errors import printable
from foretoken.metrics.table import with_class
from foretoken.sweeps.naming import params_label
from foretoken.sweeps.plan import SweepPlan
from foretoken.sweeps.runs import BROKEN, RUNNING, RunRow
from foretoken.sweeps.status import ENDED, SweepSummary, VariantStatus, by_seed, measured_metrics, summary

log = logging.getLogger(__name__)
PROGRESS = ("variant", "done", "best so far", "running", "failed", "time left")
RESULT = ("variant", "selected", "metric", "validation", "test", "seeds", "failed")
PLANNED = ("variant", "candidates", "seeds", "runs of the search", "runs after it")


class ProgressTable:
    """Shows the progress of a sweep in a ``with`` block: as a live table on a terminal, else as lines of the log."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
        self._rows: list[list[str]] = []
        self._said: tuple[int, int] | None = None
        self._block = contextlib.ExitStack()

    def __enter__(self) -> ProgressTable:
        if self._console.is_terminal:
            self._block.enter_context(Live(get_renderable=self._draw, console=self._console, redirect_stderr=False))
            self._block.enter_context(contextlib.redirect_stderr(LinesAbove(self._console)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._block.__exit__(kind, error, at)

    def update(self, statuses: Sequence[VariantStatus]) -> None:
        """Show new statuses."""
        self._rows = progress_rows(statuses)
        counts = sum(item.done for item in statuses), sum(item.total for item in statuses)
        if not self._console.is_terminal and counts != self._said:
            self._said = counts
            log.info("%d of %d runs done", *counts)

    def _draw(self) -> Table:
        drawn = Table(*PROGRESS, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for row in self._rows:
            drawn.add_row(*map(printable, row))
        return drawn


class LinesAbove(io.TextIOBase):
    """A stderr that prints above the live table; it is no terminal, so runs draw no progress bars."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._rest = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Print complete lines, and keep the rest for the next call."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.print(line, soft_wrap=True)
        return len(text)


def progress_rows(statuses: Sequence[VariantStatus]) -> list[list[str]]:
    """Return a row per variant: runs done, best mean so far, runs by state, and the estimated time left."""
    workers = max(1, sum(item.counts.get(RUNNING, 0) for item in statuses))
    return [_progress(item, workers=workers) for item in statuses]


def result_rows(statuses: Sequence[VariantStatus]) -> list[list[str]]:
    """Return a row per variant: the selected candidate and its results, as mean and deviation over the seeds.

    Rows of the baselines follow, as means over folds. With several data sets they name a variant of each.
    """
    beside = [item for item in statuses if _baselines(item)]
    rows = [row for item in beside for row in _baseline_rows(item, named=len(beside) > 1)]
    return [*map(_result, statuses), *rows]


def planned_rows(plan: SweepPlan, sizes: Mapping[str, int]) -> list[list[str]]:
    """Return a row per variant with the runs that the plan has; `sizes` are the numbers of candidates."""
    rows = []
    for item in plan.variants:
        size, repeats, searched = sizes[item.name], len(item.repeats), len(item.search_repeats)
        seeds = f"{len(item.seeds)} x {len(item.folds)} folds" if len(item.folds) > 1 else str(len(item.seeds))
        rows.append([item.name, str(size), seeds, str(size * searched), str(repeats - searched)])
    return rows


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(59), duration(3700), duration(200000)
    ('59 s', '1 h 01 min', '55 h 33 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def broken_lines(rows: Sequence[RunRow]) -> list[str]:
    """Return one line per error, with the runs that failed with it.

    >>> broken_lines([RunRow("a", error="no such file"), RunRow("b", error="no such file")])
    ['no such file: a, b']
    """
    by_error: dict[str, list[str]] = {}
    for row in rows:
        by_error.setdefault(row.error or "no reason is known", []).append(row.run)
    return [f"{error}: {', '.join(runs)}" for error, runs in by_error.items()]


def mean_and_deviation(values: SweepSummary | None) -> str:
    """Format a mean and its standard deviation.

    >>> mean_and_deviation({"mean": 0.75, "std": 0.02, "seeds": {}})
    '0.7500 ± 0.0200'
    """
    if values is None:
        return "-"
    return f"{values['mean']:.4f}" + ("" if values["std"] is None else f" ± {values['std']:.4f}")


def _progress(item: VariantStatus, *, workers: int) -> list[str]:
    counts, best = item.counts, item.best
    said = "-" if best is None else f"{best.score:.4f} ({params_label(best.params, digits=4) or 'no search'})"
    numbers = str(counts.get(RUNNING, 0)), _failed(item)
    return [item.variant.name, f"{item.done}/{item.total}", said, *numbers, _time_left(item, workers)]


def _result(item: VariantStatus) -> list[str]:
    chosen, metric, named = item.selected, item.variant.metric, with_class(item.variant.metric, item.positive)
    if chosen is None:
        return [item.variant.name, "none" if item.search_is_over else "open", named, "-", "-", "0", _failed(item)]
    known = by_seed(item.variant, {repeat: row.validation for repeat, row in chosen.rows.items()})
    validation = summary({seed: scores[metric] for seed, scores in known.items()}) if known else None
    test = measured_metrics(chosen).get(metric)
    name = params_label(chosen.params, digits=4) or "-"
    seeds = "0" if test is None else str(len(test["seeds"]))
    shown = [mean_and_deviation(validation), mean_and_deviation(test), seeds]
    return [item.variant.name, name, named, *shown, _failed(item)]


def _baselines(item: VariantStatus) -> list[RunRow]:
    """Return the runs of the selected candidate that measured the baselines."""
    return [row for row in item.selected.rows.values() if row.baselines] if item.selected else []


def _baseline_rows(item: VariantStatus, *, named: bool) -> list[list[str]]:
    rows, metric = _baselines(item), item.variant.metric
    lines = []
    for name in dict.fromkeys(name for row in rows for name in row.baselines):
        scores = [
            [row.baselines[name][split].get(metric) for row in rows if name in row.baselines]
            for split in ("validation", "test")
        ]
        known = [[score for score in values if score is not None] for values in scores]
        shown = [f"{fmean(values):.4f}" if values else "-" for values in known]
        called = f"{name} (baseline of {item.variant.name})" if named else f"{name} (baseline)"
        lines.append([called, "-", with_class(metric, item.positive), *shown, "-", "-"])
    return lines


def _failed(item: VariantStatus) -> str:
    return str(sum(item.counts.get(state, 0) for state in BROKEN))


def _time_left(item: VariantStatus, workers: int) -> str:
    took = [row.seconds for row in item.wanted if row.state in ENDED and row.seconds]
    left = item.total - item.done
    return duration(left * sum(took) / len(took) / workers) if took and left else "-"
