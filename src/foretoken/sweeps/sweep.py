"""A sweep under way: the plan and the board together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from foretoken.sweeps.candidates import Params, planned, pools
from foretoken.sweeps.database import Database
from foretoken.sweeps.plan import Plan
from foretoken.sweeps.run_table import FAILED, TRAINED, UNMEASURED, WAITING, Board
from foretoken.sweeps.status import Candidate, Standing, broken, standings
from foretoken.training.problems.metrics import greater_is_better
from foretoken.training.recipe.recipe import Recipe
from foretoken.training.run.record import recipe_to_json


class Sweep:
    """Knows how things stand, and puts on the board what has become wanted."""

    def __init__(self, plan: Plan, database: Database) -> None:
        self.plan = plan
        self.board = Board(database, plan.file.name)
        self.recipes: dict[str, Recipe] = {}
        self.latest: list[Standing] = []  # as of the last look
        self.maximise = {item.metric: greater_is_better(item.metric) for item in plan.contestants}
        self._fixed = {item.name: planned(item, plan.file.search) for item in plan.contestants}
        self._looking = threading.Lock()  # the heart of a run looks too

    def look(self) -> list[Standing]:
        """Read the board; add the runs that are wanted and not on it."""
        with self._looking:
            self.latest = self._read()
            wanted = {name: recipe for item in self.latest for name, recipe in self._wanted(item)}
            missing = {name: recipe for name, recipe in wanted.items() if name not in self.recipes}
            if missing:
                self.board.add({name: recipe_to_json(recipe) for name, recipe in missing.items()})
                self.recipes |= missing
                self.latest = self._read()
            return self.latest

    def retry_broken(self) -> int:
        """Put the runs that failed back on the board; return how many."""
        failed = broken(self.look())
        back = {FAILED: WAITING, UNMEASURED: TRAINED}
        for row in failed:
            self.board.reset(row.run, row.state, back[row.state])
        return len(failed)

    def _read(self) -> list[Standing]:
        depends = any(found is None for found in self._fixed.values())
        proposed = self.board.proposed() if depends else {}
        return standings(self.plan, pools(self.plan, self._fixed, proposed), self.board.rows(), self.maximise)

    def _wanted(self, standing: Standing) -> Iterator[tuple[str, Recipe]]:
        for candidate in standing.candidates:
            yield from self._runs(candidate, candidate.contestant.search_seeds)
        if standing.selected is not None:
            yield from self._runs(standing.selected, list(standing.selected.rows))

    def _runs(self, candidate: Candidate, seeds: Sequence[int]) -> Iterator[tuple[str, Recipe]]:
        for seed in seeds:
            name = candidate.rows[seed].run
            known = self.recipes.get(name)
            yield name, known or self.plan.recipe(candidate.contestant, candidate.params, seed)

    def next_proposal(self, standing: Standing) -> tuple[int, Params] | None:
        """Return number and parameters of a contestant's next candidate; None where it has them all."""
        from foretoken.sweeps.candidates import propose

        number = len(standing.candidates)
        if number >= standing.expected:
            return None
        known = [item.outcome for item in standing.candidates]
        return number, propose(standing.contestant, self.plan.file.search, known, maximise=standing.maximise)


def sweep_counts(found: Sequence[Standing]) -> dict[str, Any]:
    """Return runs by state, over all contestants."""
    total: dict[str, int] = {}
    for item in found:
        for state, count in item.counts.items():
            total[state] = total.get(state, 0) + count
    return total
