"""Comparisons of two methods on a task: over seeds by t-tests, over documents by a paired bootstrap.

Every two methods of the same task and model are compared on test. The first of the two is better by validation.

The t-tests are Welch's and not paired: scores of two methods with the same seed are no pairs, though they share the
order of the documents and the initial head, and a choice between both tests by the data would bias the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from foretoken.errors import DataError
from foretoken.metrics.statistics import Bootstrap, TTest, holm, paired_bootstrap, t_test
from foretoken.report.runs.documents import MEASURES, Key, paired, per_document
from foretoken.report.runs.groups import TEST, Results, RunGroup, by
from foretoken.report.scores import greater_is_better

SAMPLES = 5000
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Comparison:
    """Two groups on test. Impossible tests are None, with the reason in `no_*`; `holm_*` are corrected p-values."""

    one: RunGroup
    other: RunGroup
    difference: float | None = None  # of the means over seeds, in the task's metric
    over_seeds: TTest | None = None
    no_t_test: str = ""
    bootstrap: Bootstrap | None = None
    measure: str = ""
    no_bootstrap: str = ""
    holm_over_seeds: float | None = None
    holm_bootstrap: float | None = None


def compare(results: Results) -> list[Comparison]:
    """Compare the chosen methods of every task and model; p-values are corrected (Holm) within a task."""
    comparisons: list[Comparison] = []
    for alike in by(results.chosen, lambda group: group.task).values():
        documents = {id(group): per_document(group) for group in alike}
        models = by(alike, lambda group: group.model).values()
        pairs = [pair for same in models for pair in combinations(_by_validation(same), 2)]
        compared = [_over_documents(_over_seeds(*pair), *(documents[id(group)] for group in pair)) for pair in pairs]
        comparisons += _corrected(compared)
    return comparisons


def _by_validation(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups in the order of their validation scores, the best first; those without one last."""
    sign = -1 if groups and greater_is_better(groups[0].metric) else 1
    return sorted(groups, key=lambda group: (group.validation is None, sign * (group.validation or 0.0)))


def _over_seeds(group: RunGroup, other: RunGroup) -> Comparison:
    first, second = group.values(group.metric, TEST), other.values(group.metric, TEST)
    if not first or not second:
        return Comparison(group, other, no_t_test=f"no test scores of {(other if first else group).label}")
    compared = Comparison(group, other, fmean(first) - fmean(second))
    if min(len(first), len(second)) < 2:
        return replace(compared, no_t_test=f"no test possible with one seed ({len(first)} and {len(second)})")
    try:
        return replace(compared, over_seeds=t_test(first, second))
    except DataError as error:
        return replace(compared, no_t_test=str(error))


def _over_documents(
    compared: Comparison, documents: dict[Key, float] | str, others: dict[Key, float] | str
) -> Comparison:
    if isinstance(documents, str) or isinstance(others, str):
        return replace(compared, no_bootstrap=str(documents if isinstance(documents, str) else others))
    try:
        result = paired_bootstrap(*paired(documents, others), samples=SAMPLES)
    except DataError as error:
        return replace(compared, no_bootstrap=str(error))
    return replace(compared, bootstrap=result, measure=MEASURES[compared.one.first.answer].name)


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct the p-values of each kind of test for the number of tests on the task."""
    corrected = list(comparisons)
    for name in ("over_seeds", "bootstrap"):
        tested = [index for index, item in enumerate(corrected) if getattr(item, name) is not None]
        adjusted = holm([getattr(corrected[index], name).p_value for index in tested])
        for index, p_value in zip(tested, adjusted, strict=True):
            changes: dict[str, Any] = {f"holm_{name}": p_value}
            corrected[index] = replace(corrected[index], **changes)
    return corrected
