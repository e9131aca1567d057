"""One sentence per task: which method is best, by how much, and whether the tests separate it from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from foretoken.report.figures.panels import best_by_validation, is_share
from foretoken.report.runs.compare import SIGNIFICANT, Comparison
from foretoken.report.runs.groups import TEST, VALIDATION, Group, by
from foretoken.report.tables.scores import greater_is_better, heading, printed

REFERENCES = ("lora", "head-only")  # what the best is measured by, beside the next: the usual adapter, no adapter
Test = Callable[[Comparison], tuple[float, float | None]]  # by how much the first is better, and the p-value


class Sides(NamedTuple):
    """Methods that a test finds worse than the best, those it does not tell apart from it, and those it finds better.

    Only documents can find a better one: what is measured of each of them need not be the task's metric.
    """

    behind: list[Group]
    unclear: list[Group]
    ahead: list[Group]


class Standing(NamedTuple):
    """The methods of a task: those level at the top, the others from the best down, and those without a score."""

    metric: str
    split: str
    leaders: list[Group]
    others: list[Group]
    unmeasured: list[Group]


def answer(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> str:
    """Return the sentence on the groups of one task and model, without the name of these."""
    metric = groups[0].metric
    standing = _standing(groups)
    if not standing.leaders:
        return f"no run has a score in {heading(metric)}."
    compared = _compared(standing)
    parts = [
        f"{_best(standing)}{_margins(standing, compared)}",
        *_tested(standing, compared, comparisons),
        *_chosen(standing, groups),
        *([f"no score on {standing.split}: {_listed(standing.unmeasured)}"] if standing.unmeasured else []),
    ]
    return f"{'; '.join(parts)}."


def _standing(groups: Sequence[Group]) -> Standing:
    """Rank the groups on test, or on validation where no test split was looked at; what prints alike is level."""
    metric = groups[0].metric
    split = TEST if any(group.values(metric, TEST) for group in groups) else VALIDATION
    measured = [group for group in groups if group.values(metric, split)]
    measured.sort(key=lambda group: _mean(group, split), reverse=greater_is_better(metric))
    level = [group for group in measured if _is_level(group, measured[0], split)]
    return Standing(
        metric,
        split,
        level,
        [group for group in measured if group not in level],
        [group for group in groups if group not in measured],
    )


def _mean(group: Group, split: str) -> float:
    return fmean(group.values(group.metric, split))


def _is_level(group: Group, best: Group, split: str) -> bool:
    difference = abs(_mean(group, split) - _mean(best, split))
    return printed(group.metric, difference) == printed(group.metric, 0.0)


def _compared(standing: Standing) -> list[Group]:
    """Return what the best is compared with: the next one, and the best of each method of reference."""
    of_method = by(standing.others, lambda group: group.first.method)
    named = [*standing.others[:1], *(of_method[name][0] for name in REFERENCES if name in of_method)]
    return list({group.label: group for group in named}.values())


def _best(standing: Standing) -> str:
    first, metric = standing.leaders[0], standing.metric
    score = f"{heading(metric)} {printed(metric, _mean(first, standing.split))} on {standing.split}"
    runs = _runs(first, standing.split)
    if not standing.others and len(standing.leaders) == 1:
        alone = "the only method here" if not standing.unmeasured else "the only one measured"
        return f"{first.label}, {alone}, has {score} ({runs})"
    verb = "is best with" if len(standing.leaders) == 1 else "are level at the top with"
    return f"{_listed(standing.leaders)} {verb} {score} ({runs})"


def _runs(group: Group, split: str) -> str:
    """Return what a mean is of; runs of a seed differ in the documents that they were tested on."""
    found = [run for run in group.runs if group.metric in run.scores(split)]
    seeds = {run.seed for run in found}
    number, noun = (len(seeds), "seed") if len(seeds) == len(found) else (len(found), "run")
    return f"one {noun}" if number == 1 else f"mean of {number} {noun}s"


def _margins(standing: Standing, compared: Sequence[Group]) -> str:
    """Say by how much the best is ahead."""
    first, metric, split = standing.leaders[0], standing.metric, standing.split
    points = " points" if is_share(metric) else ""
    side = "above" if greater_is_better(metric) else "below"
    said = []
    for group in compared:
        ahead = printed(metric, abs(_mean(first, split) - _mean(group, split)))
        notes = ["the next"] if group is standing.others[0] and len(standing.others) > 1 else []
        notes += [_runs(group, split)] if _runs(group, split) != _runs(first, split) else []
        note = f" ({', '.join(notes)})" if notes else ""
        said.append(f"{ahead}{points} {side} {group.label}{note}")
    return f", {_joined(said)}" if said else ""


def _tested(standing: Standing, compared: Sequence[Group], comparisons: Sequence[Comparison]) -> list[str]:
    """Say what the tests make of that: over documents, which is paired, and over seeds."""
    if not compared:
        return []
    if standing.split != TEST:
        return ["validation scores are not tested"]
    pairs = {frozenset((id(item.one), id(item.other))): item for item in comparisons}
    items = [[pairs[frozenset((id(first), id(group)))] for first in standing.leaders] for group in compared]
    first = items[0][0]
    documents = _sides(standing, compared, items, _over_documents)
    seeds = _sides(standing, compared, items, _over_seeds)
    if documents is None and seeds is None:
        return [f"whether that is more than chance is not known: {first.no_t_test or first.no_bootstrap}"]
    if documents is not None and documents == seeds:
        return [_said("both the paired test over documents and the test over seeds", documents, standing, plural=True)]
    tests = (("the paired test over documents", documents), ("the test over seeds", seeds))
    said = [_said(name, sides, standing) for name, sides in tests if sides is not None]
    return said if seeds is not None else [*said, first.no_t_test]


def _sides(
    standing: Standing, compared: Sequence[Group], items: Sequence[Sequence[Comparison]], test: Test
) -> Sides | None:
    """Return where a test has put the groups, beside all that are level at the top; None where it was not made."""
    sides = Sides([], [], [])
    for group, row in zip(compared, items, strict=True):
        verdicts = {_verdict(first, item, test) for first, item in zip(standing.leaders, row, strict=True)}
        if None not in verdicts:
            side = verdicts.pop() if len(verdicts) == 1 else 0
            (sides.behind if side == 1 else sides.ahead if side == -1 else sides.unclear).append(group)
    return sides if any(sides) else None


def _said(name: str, sides: Sides, standing: Standing, *, plural: bool = False) -> str:
    it, s, does = "it" if len(standing.leaders) == 1 else "them", "" if plural else "s", "do" if plural else "does"
    parts = [f"separate{s} {it} from {_listed(sides.behind)}"] if sides.behind else []
    if sides.unclear:
        parts.append(f"{'not' if parts else f'{does} not separate {it}'} from {_listed(sides.unclear, 'or')}")
    if sides.ahead:
        parts.append(f"put{s} {_listed(sides.ahead)} ahead")
    return f"{name} {', '.join(parts)}"


def _verdict(first: Group, item: Comparison, test: Test) -> int | None:
    """Return 1 where a group is significantly better, -1 where it is worse, else 0; None where it was not tested."""
    gain, p_value = test(item)
    if p_value is None:
        return None
    return 0 if p_value >= SIGNIFICANT else 1 if (gain > 0) is (item.one is first) else -1


def _over_documents(item: Comparison) -> tuple[float, float | None]:
    return (item.bootstrap.difference if item.bootstrap else 0.0), item.holm_bootstrap


def _over_seeds(item: Comparison) -> tuple[float, float | None]:
    sign = 1 if greater_is_better(item.one.metric) else -1
    return sign * (item.difference or 0.0), item.holm_two_sided


def _chosen(standing: Standing, groups: Sequence[Group]) -> list[str]:
    """Say what validation alone would have chosen, where that is another method."""
    choice = best_by_validation(groups)
    level = {choice.validation, None} & {group.validation for group in standing.leaders}
    if standing.split != TEST or choice.validation is None or level:
        return []
    score = printed(choice.metric, _mean(choice, TEST)) if choice in standing.others else ""
    return [f"validation alone would choose {choice.label}" + (f", {score} on test" if score else "")]


def _listed(groups: Sequence[Group], last: str = "and") -> str:
    return _joined([group.label for group in groups], last)


def _joined(parts: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
