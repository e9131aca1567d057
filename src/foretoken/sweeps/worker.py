"""A worker: takes runs from the run table one by one until the sweep is over."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from transformers import TrainerCallback

from foretoken.errors import ConfigError, ForetokenError, RunBusyError, SaveError
from foretoken.options import Values
from foretoken.sweeps.database import DatabaseError
from foretoken.sweeps.heartbeat import Heartbeat, LivenessCheck, LostRun
from foretoken.sweeps.pruning import PruneCallback
from foretoken.sweeps.run_table import (
    FAILED,
    HELD,
    MEASURED,
    MEASURING,
    PRUNED,
    RUNNING,
    SCORED,
    TRAINED,
    UNMEASURED,
    WAITING,
    RunRow,
)
from foretoken.sweeps.status import VariantStatus, in_turn, is_over
from foretoken.sweeps.sweep import Sweep
from foretoken.sweeps.worker_id import machine_of, new_worker_id
from foretoken.training.run import record as records
from foretoken.training.run.checkpoints import last_step
from foretoken.training.run.folder import CHECKPOINTS
from foretoken.training.run.record import FINISHED, Pruned, read_record

log = logging.getLogger(__name__)
MOST_TAKEOVERS = 3  # if a run's workers died more often at the same step, the run is what kills them
PAUSE = 1.0  # seconds between two looks at the run table when there is no run to take
Publish = Callable[[Sequence[VariantStatus]], object]


class Worker:
    """Takes runs until none is left; `publish` gets the statuses at every change.

    With `accept_changed` killed runs go on even if data, model or versions have changed.
    """

    def __init__(
        self,
        sweep: Sweep,
        publish: Publish,
        *,
        accept_changed: bool = False,
        before_take: Callable[[], object] = lambda: None,
    ) -> None:
        self.sweep, self.run_table, self.config = sweep, sweep.run_table, sweep.plan.config
        self.publish, self.before_take = publish, before_take
        self.accept_changed = accept_changed
        self.worker_id = new_worker_id()
        self.liveness = LivenessCheck(self.run_table, patience=self.config.database.takeover_after)
        self._elsewhere_since: float | None = None

    def work(self) -> None:
        """Take runs until the sweep is over.

        Raises:
            DatabaseError: the database stayed away for too long.
            ConfigError: what is left lies on another machine.
            KeyboardInterrupt: the run at hand was given back first.
        """
        while True:
            self.before_take()
            statuses = self.look()
            if is_over(statuses):
                return
            if not self._take(statuses) and not self._propose(statuses):
                self._refuse_what_lies_elsewhere(statuses)
                time.sleep(PAUSE)

    def look(self) -> list[VariantStatus]:
        """Read the statuses and publish them."""
        statuses = self.sweep.look()
        self.publish(statuses)
        return statuses

    def _take(self, statuses: Sequence[VariantStatus]) -> bool:
        """Take the first free run, and do it."""
        by_run = {row.run: item for item in statuses for row in item.wanted}
        for row in _open(statuses):
            target = MEASURING if row.state in SCORED else RUNNING
            if not self._is_free(row):
                continue
            seen = self._with_checkpoint(row)
            if self.run_table.claim(seen, target, self.worker_id):
                self._do(seen, by_run[row.run], target)
                return True
        return False

    def _is_free(self, row: RunRow) -> bool:
        """Tell whether a run may be taken; its test split is measured on the machine that has its adapter."""
        if row.state in SCORED and not self._is_here(row):
            return False
        return row.state not in HELD or self.liveness.is_abandoned(row)

    def _with_checkpoint(self, row: RunRow) -> RunRow:
        """Return a run of a dead worker with the step of its last checkpoint, if that is beyond the table's.

        A worker that got further than those before it did not die at the same step.
        """
        if row.state != RUNNING:
            return row
        reached = last_step(self.sweep.recipes[row.run].run_folder / CHECKPOINTS)
        return replace(row, step=reached, takeovers=0) if reached > row.step else row

    def _is_here(self, row: RunRow) -> bool:
        return self._recorded_status(row) == FINISHED

    def _recorded_status(self, row: RunRow) -> str | None:
        """Return the status in the record of a run; None if there is none on this machine."""
        record = read_record(self.sweep.recipes[row.run].run_folder)
        return record.get("status") if isinstance(record, dict) else None

    def _do(self, row: RunRow, status: VariantStatus, state: str) -> None:
        """Train or measure a run that this worker holds, and write the result to the run table."""
        log.info("%s: %s", "training" if state == RUNNING else "measuring the test split of", row.run)
        began, interval = time.monotonic(), self.config.database.heartbeat
        with Heartbeat(self.run_table, row.run, self.worker_id, interval=interval, after_beat=self.look) as heartbeat:
            try:
                self.look()  # publishes that the run has started
                values = self._outcome(row, status, state, heartbeat)
            except LostRun:
                log.warning("%s was taken over by another worker, as this one gave no sign of life", row.run)
                return
            except RunBusyError as busy:  # the worker that held it is alive after all
                log.warning("%s", busy)
                self.run_table.give_back(row.run, self.worker_id, WAITING if state == RUNNING else TRAINED)
                time.sleep(PAUSE)
                return
            except (KeyboardInterrupt, SystemExit, SaveError):
                self.run_table.give_back(row.run, self.worker_id, WAITING if state == RUNNING else TRAINED)
                self.look()
                raise
        seconds = row.seconds + time.monotonic() - began
        self.run_table.note(row.run, self.worker_id, seconds=seconds, **values)
        said = f": {values['error']}" if values.get("error") else ""
        log.log(logging.WARNING if said else logging.INFO, "%s is %s%s", row.run, values["state"], said)

    def _outcome(self, row: RunRow, status: VariantStatus, state: str, heartbeat: Heartbeat) -> dict[str, object]:
        """Return the columns to write for a run; its failure does not stop the sweep."""
        broken = FAILED if state == RUNNING else UNMEASURED
        if row.state in HELD and row.takeovers >= MOST_TAKEOVERS:
            where = f"without getting past step {row.step}"
            return {"state": broken, "error": f"its worker died {row.takeovers + 1} times {where}"}
        try:
            return self._train(row, status, heartbeat) if state == RUNNING else self._measure(row)
        except Pruned as reason:
            return {"state": PRUNED, "error": str(reason)}
        except (DatabaseError, RunBusyError):
            raise
        except ForetokenError as error:
            return {"state": broken, "error": str(error)}
        except Exception as error:  # a defect or a full memory does not stop the other runs
            traceback.print_exc()
            return {"state": broken, "error": f"{type(error).__name__}: {error}"}

    def _train(self, row: RunRow, status: VariantStatus, heartbeat: Heartbeat) -> dict[str, object]:
        from foretoken.training.run.train import train

        recipe = self.sweep.recipes[row.run]
        if row.state in HELD and self._recorded_status(row) == records.PRUNED:  # its worker died before it wrote that
            raise Pruned((read_record(recipe.run_folder) or {}).get("error"))
        callbacks = [heartbeat, *self._pruning(row, status)]
        record = train(recipe, accept_changed=self.accept_changed, callbacks=callbacks, measure_test=False)
        metric, known = status.variant.metric, record["validation"]
        if known.get(metric) is None:
            raise ConfigError(f"the run has no validation metric {metric}; it has {', '.join(known)}")
        return {"state": TRAINED, "validation": known, "takeovers": 0}

    def _measure(self, row: RunRow) -> dict[str, object]:
        from foretoken.inference.evaluate import measure_test

        record = measure_test(self.sweep.recipes[row.run], accept_changed=self.accept_changed)
        return {"state": MEASURED, "test": record["test"]}

    def _pruning(self, row: RunRow, status: VariantStatus) -> list[TrainerCallback]:
        if self.config.prune is None:
            return []
        runs = [other.run for other in status.wanted if other.run != row.run]

        def others() -> list[RunRow]:
            rows = self.run_table.rows()
            return [rows[run] for run in runs if run in rows]

        def note(history: Values) -> bool:
            return self.run_table.note(row.run, self.worker_id, history=history)

        metric, maximise = status.variant.metric, status.maximise
        return [PruneCallback(self.config.prune, metric=metric, maximise=maximise, others=others, note=note)]

    def _propose(self, statuses: Sequence[VariantStatus]) -> bool:
        """Add a candidate to the first variant that needs one; its runs are added by the next look."""
        for item in statuses:
            proposal = self.sweep.next_proposal(item)
            if proposal is not None:
                self.run_table.propose(item.variant.name, *proposal)
                return True
        return False

    def _refuse_what_lies_elsewhere(self, statuses: Sequence[VariantStatus]) -> None:
        """Raise if only test splits are left, of runs whose folders are on machines without a worker."""
        left = list(_open(statuses))
        if any(row.state != TRAINED for row in left):
            self._elsewhere_since = None
            return
        now = time.monotonic()
        self._elsewhere_since = self._elsewhere_since or now
        if now - self._elsewhere_since > self.config.database.takeover_after:
            places = ", ".join(sorted({machine_of(row.owner) for row in left}))
            raise ConfigError(
                f"{len(left)} selected runs were trained on {places} and their folders are not here: "
                "give the same command there, or share the folder, to measure their test split"
            )


def _open(statuses: Sequence[VariantStatus]) -> Iterator[RunRow]:
    """Yield the runs that are left, those of the variant with the fewest ended runs first."""
    behind = sorted(statuses, key=lambda item: item.done)
    yield from in_turn([item.to_train for item in behind])
    yield from in_turn([item.to_measure for item in behind])
