"""How a sweep stands: scores, what is chosen, and what is left to do. Pure functions of the plan and the board."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from foretoken.sweeps.candidates import Outcome, Params, Pool
from foretoken.sweeps.plan import Contestant, Plan, run_name
from foretoken.sweeps.run_table import BROKEN, FAILED, MEASURED, PRUNED, SCORED, UNMEASURED, WAITING, Row

ENDED = (*SCORED, PRUNED, FAILED)


@dataclass(frozen=True)
class Candidate:
    """One choice of the searched fields, and its runs by seed; a run that is not on the board yet is waiting."""

    contestant: Contestant
    params: Params
    rows: Mapping[int, Row]

    @property
    def searched(self) -> list[Row]:
        """The runs that decide."""
        return [self.rows[seed] for seed in self.contestant.search_seeds]

    @property
    def is_lost(self) -> bool:
        """Whether it can no longer be chosen: a run of it failed or was pruned."""
        return any(row.state in (FAILED, PRUNED) for row in self.searched)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to find out about it."""
        return self.is_lost or all(row.state in SCORED for row in self.searched)

    @property
    def scores(self) -> list[float]:
        """Validation metric of the runs that decide, as far as they have one."""
        found = [(row.validation or {}).get(self.contestant.metric) for row in self.searched if row.state in SCORED]
        return [value for value in found if value is not None]

    @property
    def score(self) -> float | None:
        """Mean validation metric over the seeds; None until every run that decides has one."""
        complete = not self.is_lost and len(self.scores) == len(self.contestant.search_seeds)
        return statistics.fmean(self.scores) if complete else None

    @property
    def outcome(self) -> Outcome:
        """What a proposal of further candidates takes from it."""
        seen = next((row.history for row in self.searched if row.state == PRUNED and row.history), {})
        return Outcome(self.params, self.score, lost=self.is_lost, seen=seen.get("values", {}))


@dataclass(frozen=True)
class Standing:
    """How one contestant stands."""

    contestant: Contestant
    candidates: Sequence[Candidate]
    expected: int
    maximise: bool

    @property
    def search_is_over(self) -> bool:
        """Whether every candidate has been tried."""
        return len(self.candidates) >= self.expected and all(item.is_over for item in self.candidates)

    @cached_property
    def best(self) -> Candidate | None:
        """The candidate with the best mean so far; of equal ones the first."""
        scored = [item for item in self.candidates if item.score is not None]
        sign = 1 if self.maximise else -1
        return max(scored, key=lambda item: sign * (item.score or 0.0), default=None)

    @property
    def selected(self) -> Candidate | None:
        """The best candidate, once all have been tried."""
        return self.best if self.search_is_over else None

    @property
    def wanted(self) -> list[Row]:
        """Every run that is needed as far as one knows: of the search, and of the selected candidate."""
        needed = {row.run: row for item in self.candidates for row in _needed(item)}
        if self.selected is not None:
            needed |= {row.run: row for row in self.selected.rows.values()}
        return list(needed.values())

    @property
    def to_train(self) -> list[Row]:
        """Runs that have not ended, in order."""
        return [row for row in self.wanted if row.state not in ENDED]

    @property
    def to_measure(self) -> list[Row]:
        """Runs of the selected candidate whose test split is to be measured: none before all are trained."""
        if self.selected is None or self.to_train:
            return []
        return [row for row in self.selected.rows.values() if row.state in SCORED and not _is_measured(row)]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.search_is_over and not self.to_train and not self.to_measure

    @property
    def counts(self) -> dict[str, int]:
        """Runs by state."""
        return dict(Counter(row.state for row in self.wanted))


def standings(
    plan: Plan, pools: Mapping[str, Pool], rows: Mapping[str, Row], maximise: Mapping[str, bool]
) -> list[Standing]:
    """Return how every contestant stands; `maximise` says of each metric whether more of it is better."""
    found = []
    for item in plan.contestants:
        pool = pools[item.name]
        candidates = [_candidate(item, params, rows) for params in pool.candidates]
        found.append(Standing(item, candidates, pool.size, maximise[item.metric]))
    return found


def is_over(all_standings: Iterable[Standing]) -> bool:
    """Tell whether the sweep is at its end."""
    return all(item.is_over for item in all_standings)


def broken(all_standings: Iterable[Standing]) -> list[Row]:
    """Return the runs that failed."""
    return [row for item in all_standings for row in item.wanted if row.state in BROKEN]


def in_turn(columns: Iterable[Sequence[Row]]) -> Iterator[Row]:
    """Yield the first of every contestant, then the second of every one: all get on together.

    >>> [row.run for row in in_turn([[Row("a1", {}), Row("a2", {})], [Row("b1", {})]])]
    ['a1', 'b1', 'a2']
    """
    waiting = [list(column) for column in columns]
    while any(waiting):
        yield from (column.pop(0) for column in waiting if column)


def measured_metrics(candidate: Candidate) -> dict[str, dict[str, Any]]:
    """Return mean, standard deviation (of a sample) and values by seed of every metric on the test split."""
    measured = {seed: row.test for seed, row in candidate.rows.items() if row.state == MEASURED and row.test}
    names = dict.fromkeys(name for test in measured.values() for name in test)
    return {name: summary({seed: test[name] for seed, test in measured.items() if name in test}) for name in names}


def summary(values: Mapping[int, float]) -> dict[str, Any]:
    """Return mean, standard deviation of a sample (none for one value) and the values.

    >>> summary({0: 0.5, 1: 0.7})["mean"]
    0.6
    """
    numbers = list(values.values())
    return {"mean": statistics.fmean(numbers), "std": deviation(numbers), "seeds": dict(values)}


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample; None for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def _candidate(contestant: Contestant, params: Params, rows: Mapping[str, Row]) -> Candidate:
    names = {seed: run_name(contestant, params, seed) for seed in contestant.seeds}
    own = {seed: rows.get(name, Row(name, {})) for seed, name in names.items()}
    return Candidate(contestant, params, own)


def _needed(candidate: Candidate) -> list[Row]:
    """Leave out what a lost candidate never needs to run."""
    return [row for row in candidate.searched if not (candidate.is_lost and row.state == WAITING)]


def _is_measured(row: Row) -> bool:
    return row.state in (MEASURED, UNMEASURED)
