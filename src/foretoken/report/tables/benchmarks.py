"""The mean over the tasks of a benchmark: GLUE, SuperGLUE."""

from __future__ import annotations

from statistics import fmean

from foretoken.metrics.glue import GLUE, SUPERGLUE, BenchmarkMean, glue_mean
from foretoken.report.render.table import Cell, Table, ranked
from foretoken.report.runs.groups import TEST, Group, Results
from foretoken.report.runs.records import PART
from foretoken.report.tables.scores import ABSENT

_BENCHMARKS = {"GLUE": GLUE, "SuperGLUE": SUPERGLUE}
_OWN_NAMES = {"SuperGLUE": {"superglue-rte": "rte"}}  # tasks that both benchmarks have
_FEWEST = 2
_MEAN = (
    "Mean over tasks of the mean of each task's metrics, on test, each a mean over seeds. Times 100. "
    "Rows over different tasks do not compare."
)


def benchmark_table(results: Results, name: str) -> Table | None:
    """Return each method's mean over a benchmark's tasks; None where no method has two of them."""
    rows = []
    for model, label in sorted({(group.model, group.label) for group in results.chosen}):
        groups = [group for group in results.chosen if (group.model, group.label) == (model, label)]
        mean = _mean(groups, name)
        if mean is not None:
            rows.append((label, model, mean))
    if not rows:
        return None
    best = ranked(
        [Cell(f"{100 * mean.mean:.1f}", mean.mean) for _, _, mean in rows],
        greater_is_better=True,
        competing=[mean.missing == rows[0][2].missing for _, _, mean in rows],
    )
    return Table(
        f"Mean over {name}",
        ("Method", "Model", "Mean", "Tasks", "Without"),
        tuple(
            (Cell(label), Cell(model), cell, Cell(", ".join(mean.tasks)), Cell(", ".join(mean.missing) or ABSENT))
            for (label, model, mean), cell in zip(rows, best, strict=True)
        ),
        _MEAN,
        names=2,
    )


def benchmark_names() -> list[str]:
    """Return the benchmarks, in the order of a report."""
    return list(_BENCHMARKS)


def _mean(groups: list[Group], name: str) -> BenchmarkMean | None:
    benchmark, own = _BENCHMARKS[name], _OWN_NAMES.get(name, {})
    others = {task for names in _OWN_NAMES.values() for task in names.values()} if own else set()
    scores: dict[str, dict[str, float]] = {}
    for group in groups:
        task = own.get(group.task, group.task)
        if group.split == TEST and task in benchmark and group.task not in others:
            values = _values(group)
            if all(metric in values for metric in benchmark[task]):
                scores[task] = values
    return glue_mean(scores, benchmark=benchmark) if len(scores) >= _FEWEST else None


def _values(group: Group) -> dict[str, float]:
    """Return the mean over seeds of every metric; those of MNLI's parts under the names that GLUE has for them."""
    values = {metric: fmean(found) for metric in group.measured() for found in [group.values(metric)] if found}
    named = {"accuracy": f"matched{PART}accuracy", "accuracy_mismatched": f"mismatched{PART}accuracy"}
    return values | {name: values[part] for name, part in named.items() if part in values}
