"""A sweep: its plan, and its state, which is what the folders of its runs say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from foretoken.errors import RecipeError, RunBusyError
from foretoken.files import write_json
from foretoken.metrics.table import METRICS
from foretoken.options import Values
from foretoken.outputs import SWEEP_RECORD
from foretoken.saved_files import readable_object
from foretoken.sweeps.candidates import planned, propose
from foretoken.sweeps.plan import Repeat, SweepPlan, Variant, run_name
from foretoken.sweeps.runs import BROKEN, FAILED, RUNNING, TRAINED, UNMEASURED, WAITING, RunRow, read_run
from foretoken.sweeps.space import Params
from foretoken.sweeps.status import VariantStatus, broken, variant_statuses
from foretoken.training.options import Recipe
from foretoken.training.run.record import differing_keys, recipe_to_json
from foretoken.training.run_folder import RECORD, held

log = logging.getLogger(__name__)
CANDIDATES = "candidates.json"  # in the sweep's folder: what optuna proposed, by variant
DATABASE = "sweep.db"  # of earlier versions


class Sweep:
    """Reads the status of a sweep from its folders, and adds candidates.

    Attributes:
        under_way: the runs that this command is doing.
        failed: the errors of this command's runs, also where their folders cannot be written.
        latest: the statuses as of the last look.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self.plan, self.folder = plan, plan.config.folder
        self.under_way: set[str] = set()
        self.failed: dict[str, str] = {}
        self.latest: list[VariantStatus] = []
        self.maximise = {item.metric: METRICS[item.metric].greater_is_better for item in plan.variants}
        self._planned = {item.name: planned(item, plan.config.search) for item in plan.variants}
        self._tried_again: set[str] = set()
        self._recipes: dict[str, Callable[[], Recipe]] = {}
        self._read = cache(self._read_anew)
        if (self.folder / DATABASE).exists():
            log.info("%s is no longer read, and may be deleted: the folders say what is done", self.folder / DATABASE)

    def look(self) -> list[VariantStatus]:
        """Return the status of every variant.

        Raises:
            RecipeError: a run has been trained by another recipe.
        """
        proposed = self._proposed()
        pools = {
            name: (proposed.get(name, []) if pool.candidates is None else pool.candidates, pool.size)
            for name, pool in self._planned.items()
        }
        self.latest = variant_statuses(self.plan, pools, self._row, self.maximise)
        return self.latest

    def recipe(self, run: str) -> Recipe:
        """Return the recipe of a run that a look has found."""
        return self._recipes[run]()

    def retry_broken(self) -> None:
        """Let every failed run be tried again, once."""
        self._tried_again = {row.run for row in broken(self.look())}

    def end(self, run: str, error: str | None) -> None:
        """Note that this command is done with a run."""
        self.under_way.discard(run)
        if error is not None:
            self._tried_again.discard(run)
            self.failed[run] = error

    def propose(self) -> bool:
        """Add a candidate to the first variant that needs one; tell whether any does."""
        for item in self.latest:
            if self._planned[item.variant.name].candidates is None and len(item.candidates) < item.expected:
                self._propose(item)
                return True
        return False

    def _propose(self, item: VariantStatus) -> None:
        with suppress(RunBusyError), held(self.folder):  # of two commands one adds it
            proposed = self._proposed()
            own = proposed.setdefault(item.variant.name, [])
            if len(own) == len(item.candidates):
                own.append(propose(item.variant, self.plan.config.search, item.candidates, maximise=item.maximise))
                write_json(self.folder / CANDIDATES, proposed)

    def _proposed(self) -> dict[str, list[Params]]:
        """Return what optuna proposed; earlier versions have it in the record alone."""
        if all(pool.candidates is not None for pool in self._planned.values()):
            return {}
        found = readable_object(self.folder / CANDIDATES)
        if found is None:
            variants = _objects((readable_object(self.folder / SWEEP_RECORD) or {}).get("contestants"))
            found = {str(item.get("name")): _params(item) for item in variants}
        return {name: _objects(params) for name, params in found.items()}

    def _row(self, variant: Variant, params: Params, repeat: Repeat) -> RunRow:
        """Return what is known of a run; its record is read when it has changed."""
        name = run_name(variant, params, *repeat)
        self._recipes.setdefault(name, partial(self.plan.recipe, variant, params, *repeat))
        return self._in_this_command(self._read(name, variant.metric, _stamp(self.folder / name / RECORD)))

    def _read_anew(self, name: str, metric: str, _: object) -> RunRow:
        row, recipe = read_run(name, self.folder / name, metric)
        differing = [] if recipe is None else differing_keys(recipe, recipe_to_json(self.recipe(name)))
        if differing:
            head = f"{self.folder / name} holds a run of another recipe; choose another `name`"
            raise RecipeError(head, differing)
        return row

    def _in_this_command(self, row: RunRow) -> RunRow:
        if row.run in self._tried_again and row.state in BROKEN:
            row = replace(row, state=BROKEN[row.state], error=None)
        elif row.run in self.failed and row.state not in BROKEN:
            state = UNMEASURED if row.state == TRAINED else FAILED
            row = replace(row, state=state, error=self.failed[row.run])
        is_starting = row.run in self.under_way and row.state == WAITING
        return replace(row, state=RUNNING) if is_starting else row


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what differs when a file has been written anew."""
    with suppress(OSError):
        found = file.stat()
        return found.st_mtime_ns, found.st_ino
    return None


def _params(variant: Values) -> list[object]:
    return [item.get("params") for item in _objects(variant.get("candidates"))]


def _objects(found: object) -> list[Params]:
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
