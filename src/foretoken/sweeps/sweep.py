"""A sweep: its plan and its run table together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from foretoken.sweeps.candidates import planned, pools, propose
from foretoken.sweeps.database import Database
from foretoken.sweeps.plan import Repeat, SweepPlan
from foretoken.sweeps.run_table import FAILED, TRAINED, UNMEASURED, WAITING, RunTable
from foretoken.sweeps.space import Params
from foretoken.sweeps.status import Candidate, VariantStatus, broken, variant_statuses
from foretoken.training.problems.metrics import greater_is_better
from foretoken.training.recipe.recipe import Recipe, as_begun
from foretoken.training.run.record import recipe_to_json


class Sweep:
    """Reads the status of a sweep, and adds the runs that are needed to the run table."""

    def __init__(self, plan: SweepPlan, database: Database) -> None:
        self.plan = plan
        self.run_table = RunTable(database, plan.config.name)
        self.recipes: dict[str, Recipe] = {}
        self.latest: list[VariantStatus] = []  # as of the last look
        self.maximise = {item.metric: greater_is_better(item.metric) for item in plan.variants}
        self._fixed = {item.name: planned(item, plan.config.search) for item in plan.variants}
        self._looking = threading.Lock()  # the thread of the heartbeat looks too

    def look(self) -> list[VariantStatus]:
        """Return the status of every variant, after adding the runs that are missing in the run table."""
        with self._looking:
            self.latest = self._read()
            wanted = {name: recipe for item in self.latest for name, recipe in self._wanted(item)}
            missing = {name: recipe for name, recipe in wanted.items() if name not in self.recipes}
            if missing:
                known = self.run_table.add({name: recipe_to_json(recipe) for name, recipe in missing.items()})
                self.recipes |= {name: as_begun(recipe, known[name]) for name, recipe in missing.items()}
                self.latest = self._read()
            return self.latest

    def retry_broken(self) -> int:
        """Set the failed runs back so that they run again; return how many."""
        failed = broken(self.look())
        back = {FAILED: WAITING, UNMEASURED: TRAINED}
        for row in failed:
            self.run_table.reset(row.run, row.state, back[row.state])
        return len(failed)

    def _read(self) -> list[VariantStatus]:
        depends = any(found is None for found in self._fixed.values())
        proposed = self.run_table.proposed() if depends else {}
        return variant_statuses(
            self.plan, pools(self.plan, self._fixed, proposed), self.run_table.rows(), self.maximise
        )

    def _wanted(self, status: VariantStatus) -> Iterator[tuple[str, Recipe]]:
        for candidate in status.candidates:
            yield from self._runs(candidate, candidate.variant.search_repeats)
        if status.selected is not None:
            yield from self._runs(status.selected, list(status.selected.rows))

    def _runs(self, candidate: Candidate, repeats: Sequence[Repeat]) -> Iterator[tuple[str, Recipe]]:
        for repeat in repeats:
            name = candidate.rows[repeat].run
            known = self.recipes.get(name)
            yield name, known or self.plan.recipe(candidate.variant, candidate.params, *repeat)

    def next_proposal(self, status: VariantStatus) -> tuple[int, Params] | None:
        """Return number and parameters of a variant's next candidate; None if nothing is left to propose."""
        number = len(status.candidates)
        if self._fixed[status.variant.name] is not None or number >= status.expected:
            return None
        known = [item.outcome for item in status.candidates]
        return number, propose(status.variant, self.plan.config.search, known, maximise=status.maximise)
