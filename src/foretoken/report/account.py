"""The results in plain words, and what a reader has to be warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from foretoken.metrics.statistics import summary
from foretoken.report.runs.compare import SIGNIFICANT, Comparison
from foretoken.report.runs.folds import is_whole
from foretoken.report.runs.groups import TEST, Group, Results, by
from foretoken.report.tables.matrices import seeds_of
from foretoken.report.tables.scores import greater_is_better, heading, printed, spread

_TEST = (
    f"Significant: p < {SIGNIFICANT:g} in a two-sided Welch's t-test over seeds, "
    "corrected for all comparisons of the task (Holm)."
)
_NAMED = 3
_STEPS_TIMED_ALIKE = ("machine", "gpu", "cpus", "threads", "processes")


def summary_lines(results: Results, comparisons: Sequence[Comparison]) -> list[str]:
    """Return what was compared, and for every task and model what is best and how sure that is."""
    lines = [_scope(results)]
    for alike in by(results.chosen, lambda group: (group.task, group.model)).values():
        lines.append(_verdict(alike, results, comparisons))
    tested = any(item.holm_two_sided is not None for item in comparisons)
    return [*lines, _TEST] if tested else lines


def warnings_of(results: Results) -> list[str]:
    """Return what makes runs less comparable than their table looks."""
    return [
        *_mixed_versions(results),
        *_mixed_hardware(results),
        *_same_names(results),
        *_metrics(results),
        *_lacking_folds(results),
    ]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _scope(results: Results) -> str:
    total, done = len(results.runs), len(results.finished)
    counts = f"{done} of {counted(total, 'run')} counted"
    if not results.chosen:
        return f"{counts}; there is no result to show. The table of runs that are not counted says why."
    methods = len({group.first.method for group in results.chosen})
    models = len({group.first.recipe.get("model") for group in results.chosen})
    scope = (
        f"{counts}: {counted(methods, 'method')} on {counted(len(results.tasks), 'task')} "
        f"with {counted(models, 'model')}, {_seeds(results.chosen)} each."
    )
    states = Counter(run.status if not run.is_finished else "repeated" for run, _ in results.left_out)
    missing = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{scope} Not counted: {missing}; their table says why." if missing else scope


def _seeds(groups: Sequence[Group]) -> str:
    number = seeds_of(groups)
    return f"{number} seed{'s' if number != '1' else ''}"


def _verdict(groups: Sequence[Group], results: Results, comparisons: Sequence[Comparison]) -> str:
    metric = groups[0].metric
    place = groups[0].task if len({group.model for group in results.chosen}) == 1 else _place(groups[0])
    measured = [group for group in groups if group.validation is not None]
    if not measured:
        return f"{place}: no run has a validation {heading(metric)}."
    sign = 1 if greater_is_better(metric) else -1
    best = max(measured, key=lambda group: sign * (group.validation or 0.0))
    start = f"{place}: best by validation is {best.label}, {heading(metric)} {printed(metric, best.validation)}"
    return f"{start}; {_on_test(best)} {_beside(best, groups, comparisons)}".strip()


def _place(group: Group) -> str:
    return f"{group.task}, {group.model}"


def _on_test(group: Group) -> str:
    values = group.values(group.metric, TEST)
    if not values:
        return "its test split was not looked at."
    numbers = summary(values)
    return f"on test it has {spread(group.metric, numbers.mean, numbers.std)} over {counted(numbers.n, 'seed')}."


def _beside(best: Group, groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """Say from which methods the best one differs, over seeds, after correction."""
    if len(groups) == 1:
        return "There is no other method to compare it with."
    mine = [item for item in comparisons if item.one is best or item.other is best]
    tested = [item for item in mine if item.holm_two_sided is not None]
    if not tested:
        reasons = list(dict.fromkeys(item.no_t_test for item in mine if item.no_t_test))
        return f"Whether that differs from the others over seeds is not known: {reasons[0]}." if reasons else ""
    sure = [item for item in tested if (item.holm_two_sided or 0.0) < SIGNIFICANT]
    better, worse = ([item for item in sure if _is_better(item, best) is wanted] for wanted in (True, False))
    unsure = [item for item in tested if item not in sure]
    parts = [
        _said("significantly better than", best, better),
        _said("significantly worse than", best, worse),
        _said("not shown to differ from", best, unsure),
        _said("not tested against", best, [item for item in mine if item not in tested]),
    ]
    return f"It is {'; '.join(part for part in parts if part)}."


def _is_better(item: Comparison, best: Group) -> bool:
    gain = (item.difference or 0.0) * (1 if greater_is_better(best.metric) else -1)
    return (gain > 0) is (item.one is best)


def _said(words: str, best: Group, items: Sequence[Comparison]) -> str:
    others = [item.other.label if item.one is best else item.one.label for item in items]
    return f"{words} {', '.join(others)}" if others else ""


def _mixed_versions(results: Results) -> list[str]:
    names = dict.fromkeys(name for run in results.finished for name in run.values.get("versions") or {})
    mixed = {
        name: _distinct((run.values.get("versions") or {}).get(name) for run in results.finished) for name in names
    }
    said = [f"{name} {', '.join(values)}" for name, values in mixed.items() if len(values) > 1]
    return [f"The runs were made with different versions: {'; '.join(said)}."] if said else []


def _mixed_hardware(results: Results) -> list[str]:
    machines = {
        tuple(str((run.values.get("hardware") or {}).get(key)) for key in _STEPS_TIMED_ALIKE)
        for run in results.finished
    }
    return (
        [f"The runs come from {len(machines)} kinds of machine: do not compare their times."]
        if len(machines) > 1
        else []
    )


def _same_names(results: Results) -> list[str]:
    found = Counter((run.task, run.label, run.name) for run in results.runs)  # a sweep's are alike across methods
    twice = list(dict.fromkeys(name for (_, _, name), number in found.items() if number > 1))
    if not twice:
        return []
    more = f" and {len(twice) - _NAMED} others" if len(twice) > _NAMED else ""
    names = ", ".join(twice[:_NAMED])
    return [f"More than one run has the name {names}{more}; the folder in results.csv tells them apart."]


def _metrics(results: Results) -> list[str]:
    lines = []
    for task, runs in by(results.finished, lambda run: run.task).items():
        others = _distinct(run.metric for run in runs)
        if len(others) > 1:
            used = results.of_task(task)[0].metric
            lines.append(f"{task}: runs chose their checkpoints by {', '.join(others)}; all are compared by {used}.")
    return lines


def _lacking_folds(results: Results) -> list[str]:
    """Name runs whose test scores are left out because other folds of theirs are not finished."""
    lacking = [
        f"{run.name} of {run.task} ({len(run.folds)} of {run.recipe['data']['folds']})"
        for run in results.by_seed
        if run.folds and not is_whole(run) and any(part.scores(TEST) for part in run.folds)
    ]
    if not lacking:
        return []
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return [f"Not all folds are finished, so these are shown by validation: {', '.join(lacking[:_NAMED])}{more}."]


def _distinct(values: Iterable[object]) -> list[str]:
    return sorted({str(value) for value in values if value is not None})
