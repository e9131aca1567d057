"""Comparisons of two methods on a task: over seeds by t-tests, over documents by a paired bootstrap.

Every two methods of the same task and model are compared, on test. The first of the two is the one that is better
by validation, so that the question of a one-sided test, "is the first better?", needs no look at the test scores.

The t-tests are Welch's and not paired: what two methods share through a seed (the order of the documents, the
initial head) makes their scores no pairs, and choosing between the two tests by the data would be a second chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from foretoken.errors import DataError
from foretoken.metrics.statistics import Alternative, Bootstrap, TTest, holm, paired_bootstrap, t_test
from foretoken.report.runs.documents import MEASURES, Key, paired, per_document
from foretoken.report.runs.groups import TEST, Results, RunGroup, by
from foretoken.report.scores import greater_is_better

ONE_SIDED_T = "one-sided-t"
SAMPLES = 5000
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """Two groups on test. A test that is not possible is None, with its reason; `holm_*` are corrected p-values."""

    one: RunGroup
    other: RunGroup
    difference: float | None = None  # of the means over seeds, in the task's metric
    over_seeds: TTest | None = None
    paper: TTest | None = None  # the paper's own test, where it is asked for
    no_t_test: str = ""
    bootstrap: Bootstrap | None = None
    measure: str = ""
    no_bootstrap: str = ""
    holm_over_seeds: float | None = None
    holm_bootstrap: float | None = None


def compare(results: Results, *, paper: str | None = None) -> list[Comparison]:
    """Compare the chosen methods of every task and model; p-values are corrected (Holm) within a task.

    ``paper`` names the test of a paper to make as well: `one-sided-t`, Student's, as Li et al. 2023 report it.
    """
    found: list[Comparison] = []
    for alike in by(results.chosen, lambda group: group.task).values():
        documents: dict[int, dict[Key, float] | str] = {id(group): per_document(group) for group in alike}
        models = by(alike, lambda group: group.model).values()
        pairs = [pair for same in models for pair in combinations(_by_validation(same), 2)]
        compared = [
            Comparison(
                one,
                other,
                **_over_seeds(one, other, paper),
                **_over_documents(one, documents[id(one)], documents[id(other)]),
            )
            for one, other in pairs
        ]
        found += _corrected(compared)
    return found


def _by_validation(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups, best first; those without a score last."""
    sign = -1 if groups and greater_is_better(groups[0].metric) else 1
    return sorted(groups, key=lambda group: (group.validation is None, sign * (group.validation or 0.0)))


def _over_seeds(one: RunGroup, other: RunGroup, paper: str | None) -> dict[str, Any]:
    first, second = (group.values(one.metric, TEST) for group in (one, other))
    if not first or not second:
        return {"no_t_test": f"no test scores of {(other if first else one).label}"}
    difference = {"difference": fmean(first) - fmean(second)}
    if min(len(first), len(second)) < 2:
        return difference | {"no_t_test": f"no test possible with one seed ({len(first)} and {len(second)})"}
    better: Alternative = "greater" if greater_is_better(one.metric) else "less"
    try:
        own = t_test(first, second, alternative=better, equal_var=True) if paper == ONE_SIDED_T else None
        return difference | {"over_seeds": t_test(first, second), "paper": own}
    except DataError as error:
        return difference | {"no_t_test": str(error)}


def _over_documents(one: RunGroup, documents: dict[Key, float] | str, others: dict[Key, float] | str) -> dict[str, Any]:
    for reason in (documents, others):
        if isinstance(reason, str):
            return {"no_bootstrap": reason}
    values = paired(documents, others)  # type: ignore[arg-type]
    if isinstance(values, str):
        return {"no_bootstrap": values}
    try:
        result = paired_bootstrap(*values, samples=SAMPLES)
    except DataError as error:
        return {"no_bootstrap": str(error)}
    return {"bootstrap": result, "measure": MEASURES[one.first.answer].name}


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct each kind of test for how often it was made on the task."""
    corrected = list(comparisons)
    for name in ("over_seeds", "bootstrap"):
        made = [index for index, item in enumerate(corrected) if getattr(item, name) is not None]
        adjusted = holm([getattr(corrected[index], name).p_value for index in made])
        for index, p_value in zip(made, adjusted, strict=True):
            changes: dict[str, Any] = {f"holm_{name}": p_value}
            corrected[index] = replace(corrected[index], **changes)
    return corrected
