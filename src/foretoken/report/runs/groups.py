"""Runs of one recipe as a group over seeds, and the choice among the candidates of a method, by validation alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean, median
from typing import Any, TypeVar

from foretoken.metrics.table import positive_of
from foretoken.options import flatten
from foretoken.report.runs.folds import TEST, VALIDATION, as_one
from foretoken.report.runs.labels import differing, identity, shown, without_fold
from foretoken.report.runs.records import Run
from foretoken.report.scores import greater_is_better, heading

T = TypeVar("T")
MEAN, MEDIAN = "mean", "median"  # what tables show of the seeds
_NOT_THE_RECIPE = ("name", "output", "protocol", "save_errors", "baselines")  # where it is kept, what is said of it
_NOT_THE_TRAINING = ("seed", "num_threads")


@dataclass(frozen=True)
class RunGroup:
    """Finished runs whose recipes differ in nothing but the seed, in the order of their seeds; folds count as one."""

    runs: tuple[Run, ...]
    metric: str  # that the task is compared by
    setting: str = ""  # the options in which the candidates of this method differ

    @property
    def first(self) -> Run:
        """The run of the lowest seed."""
        return self.runs[0]

    @property
    def parts(self) -> list[Run]:
        """The runs that were made: where a run stands for its folds, those."""
        return [part for run in self.runs for part in run.parts]

    @property
    def task(self) -> str:
        """The task."""
        return self.first.task

    @property
    def model(self) -> str:
        """The pretrained model."""
        return self.first.model

    @property
    def label(self) -> str:
        """The method with the options that tell it from others."""
        return self.first.label

    @property
    def line(self) -> str:
        """The method with those of the options that tell it from others that are no numbers."""
        return self.first.line

    def heading(self, metric: str = "") -> str:
        """Return what heads a metric, by default that which the task is compared by, with the class that it is of."""
        classes = dict.fromkeys(positive_of(run.problem, run.classes) for run in self.runs)
        return heading(metric or self.metric, " or ".join(classes))

    @cached_property
    def split(self) -> str:
        """`test`, or `validation` where no run of the group has looked at the test split."""
        return TEST if any(run.scores(TEST) for run in self.runs) else VALIDATION

    @cached_property
    def validation(self) -> float | None:
        """The mean of the metric over seeds, on validation; None where it was not measured."""
        values = self.values(self.metric, VALIDATION)
        return fmean(values) if values else None

    def values(self, metric: str, split: str | None = None) -> list[float]:
        """Return a metric of every run that has it, in the order of the seeds; of the group's split by default."""
        scores = [run.scores(split or self.split) for run in self.runs]
        return [score[metric] for score in scores if metric in score]

    def measured(self) -> list[str]:
        """Return the names of the metrics that any run has on the group's split."""
        return list(dict.fromkeys(name for run in self.runs for name in run.scores(self.split)))


@dataclass(frozen=True)
class Results:
    """All runs of a report: the candidates of every method, the chosen one, and what is not counted."""

    runs: tuple[Run, ...]
    groups: tuple[RunGroup, ...]
    chosen: tuple[RunGroup, ...]
    left_out: tuple[tuple[Run, str], ...]
    average: str = MEAN

    @property
    def tasks(self) -> list[str]:
        """The tasks that have results."""
        return sorted({group.task for group in self.groups})

    @property
    def finished(self) -> list[Run]:
        """The runs that are counted, each fold for itself."""
        return [run for group in self.groups for run in group.parts]

    def middle(self, values: Sequence[float]) -> float:
        """Return what the report shows of the seeds: their mean, or their median."""
        return median(values) if self.average == MEDIAN else fmean(values)

    def named(self, group: RunGroup) -> str:
        """Return what a row is called: the label of its method, and the model where there are several."""
        return f"{group.label}, {group.model}" if len({one.model for one in self.groups}) > 1 else group.label

    def of_task(self, task: str) -> list[RunGroup]:
        """Return the chosen groups of a task."""
        return [group for group in self.chosen if group.task == task]


def collect(runs: Sequence[Run], *, average: str = MEAN) -> Results:
    """Group runs over seeds and choose among the candidates of each method; `average` is what tables show of seeds."""
    made, repeated = _once_per_seed([run for run in runs if run.is_finished])
    counted = _folds_as_one(made)
    metrics = {
        task: _most_common(run.metric for run in alike) for task, alike in by(counted, lambda run: run.task).items()
    }
    groups = [
        group
        for alike in by(counted, lambda run: (run.task, run.model, run.label)).values()
        for group in _candidates(alike, metrics[alike[0].task])
    ]
    groups.sort(key=lambda group: (group.task, group.model, group.label, group.setting))
    left_out = [(run, run.reason) for run in runs if not run.is_finished] + repeated
    return Results(tuple(runs), tuple(groups), tuple(_chosen(groups)), tuple(left_out), average)


def by(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    """Return the items under their keys, in the order they come.

    >>> by([1, 2, 3], lambda number: number % 2)
    {1: [1, 3], 0: [2]}
    """
    found: dict[Any, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def _once_per_seed(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Keep one run of each recipe and seed: a copy would count twice. One that knows its test score is preferred."""
    counted: list[Run] = []
    repeated: list[tuple[Run, str]] = []
    for alike in by(runs, lambda run: (identity(settings(run.recipe)), run.seed, run.fold)).values():
        first, *others = sorted(alike, key=lambda run: not run.scores(TEST))
        counted.append(first)
        repeated += [(run, f"same recipe and seed as {first.place}, which is counted") for run in others]
    return counted, repeated


def _folds_as_one(runs: Sequence[Run]) -> list[Run]:
    found = by(runs, lambda run: id(run) if run.fold is None else (identity(settings(run.recipe)), run.seed))
    return [alike[0] if alike[0].fold is None else as_one(alike) for alike in found.values()]


def settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe asks for, without its seed, its fold and what cannot change a result."""
    kept = {key: value for key, value in recipe.items() if key not in _NOT_THE_RECIPE}
    if kept.get("data"):
        kept["data"] = without_fold(kept["data"])
    training = {key: value for key, value in (kept.get("training") or {}).items() if key not in _NOT_THE_TRAINING}
    return kept | {"training": training}


def _candidates(runs: Sequence[Run], metric: str) -> list[RunGroup]:
    """Return the groups of one task, model and method."""
    alike = list(by(runs, lambda run: identity(settings(run.recipe))).values())
    options = [_short(flatten(settings(members[0].recipe))) for members in alike]
    keys = [key for key in differing(options) if not key.startswith("data.path")]
    return [
        RunGroup(tuple(sorted(members, key=lambda run: run.seed or 0)), metric, shown(chosen, keys))
        for members, chosen in zip(alike, options, strict=True)
    ]


def _short(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("training."): value for key, value in options.items()}


def _chosen(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return, for each method of a task, the candidate that is best by validation.

    Where the test split was looked at for some candidates only, a sweep has chosen those: the others of that
    method, which may have had fewer seeds, are left to the table of all candidates.
    """
    kept = []
    for alike in by(groups, lambda group: (group.task, group.model, group.first.method)).values():
        tested = [group for group in alike if group.split == TEST]
        kept += [best_by_validation(same) for same in by(tested or alike, lambda group: group.label).values()]
    return kept


def best_by_validation(groups: Sequence[RunGroup]) -> RunGroup:
    """Return the best by mean validation score; the first among equals, never one without a score if others have."""
    sign = 1 if greater_is_better(groups[0].metric) else -1
    return max(groups, key=lambda group: -inf if group.validation is None else sign * group.validation)


def _most_common(metrics: Iterable[str]) -> str:
    return min(Counter(metrics).items(), key=lambda item: (-item[1], item[0]))[0]
