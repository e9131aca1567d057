"""A worker: takes runs from the board one after the other until the sweep is over."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import TrainerCallback

from foretoken.errors import ConfigError, ForetokenError, RunBusyError, SaveError
from foretoken.sweeps.database import DatabaseError
from foretoken.sweeps.heartbeat import Heart, LostRun, Watch
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
    Row,
)
from foretoken.sweeps.status import Standing, in_turn, is_over
from foretoken.sweeps.sweep import Sweep
from foretoken.sweeps.tables import done
from foretoken.sweeps.worker_id import machine_of, new_owner
from foretoken.training.run import record as records
from foretoken.training.run.checkpoints import last_step
from foretoken.training.run.folder import CHECKPOINTS
from foretoken.training.run.record import FINISHED, Pruned, read_record

log = logging.getLogger(__name__)
MOST_TAKEOVERS = 3  # a run whose workers died so often at the same place is what kills them
PAUSE = 1.0  # seconds between two looks at the board when there is nothing to take
Publish = Callable[[Sequence[Standing]], object]


class Worker:
    """Takes runs until none is left; `publish` gets the standing at every change.

    With `accept_changed` killed runs go on though data, model or versions are not those that they began with.
    """

    def __init__(
        self,
        sweep: Sweep,
        publish: Publish,
        *,
        accept_changed: bool = False,
        before_take: Callable[[], object] = lambda: None,
    ) -> None:
        self.sweep, self.board, self.file = sweep, sweep.board, sweep.plan.file
        self.publish, self.before_take = publish, before_take
        self.accept_changed = accept_changed
        self.owner = new_owner()
        self.watch = Watch(self.board, patience=self.file.database.takeover_after)
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
            found = self.look()
            if is_over(found):
                return
            if not self._take(found) and not self._propose(found):
                self._refuse_what_lies_elsewhere(found)
                time.sleep(PAUSE)

    def look(self) -> list[Standing]:
        """Read the board and pass it on."""
        found = self.sweep.look()
        self.publish(found)
        return found

    def _take(self, found: Sequence[Standing]) -> bool:
        """Take the first run that can be had, and do it."""
        owners = {row.run: item for item in found for row in item.wanted}
        for row in _open(found):
            target = MEASURING if row.state in SCORED else RUNNING
            if not self._is_free(row):
                continue
            seen = self._with_checkpoint(row)
            if self.board.claim(seen, target, self.owner):
                self._do(seen, owners[row.run], target)
                return True
        return False

    def _is_free(self, row: Row) -> bool:
        """Tell whether a run may be taken; its test split is measured where its adapter is."""
        if row.state in SCORED and not self._is_here(row):
            return False
        return row.state not in HELD or self.watch.abandoned(row)

    def _with_checkpoint(self, row: Row) -> Row:
        """Return a run whose worker is gone with the step of its last checkpoint, where the board does not know it.

        A worker that got further than those before it did not die of what they died of.
        """
        if row.state != RUNNING:
            return row
        reached = last_step(self.sweep.recipes[row.run].run_folder / CHECKPOINTS)
        return replace(row, step=reached, takeovers=0) if reached > row.step else row

    def _is_here(self, row: Row) -> bool:
        return self._status(row) == FINISHED

    def _status(self, row: Row) -> str | None:
        """Return what the record of a run says of it; None where there is none on this machine."""
        record = read_record(self.sweep.recipes[row.run].run_folder)
        return record.get("status") if isinstance(record, dict) else None

    def _do(self, row: Row, standing: Standing, state: str) -> None:
        """Train or measure a run that is ours, and note what became of it."""
        log.info("%s: %s", "training" if state == RUNNING else "measuring the test split of", row.run)
        began, interval = time.monotonic(), self.file.database.heartbeat
        with Heart(self.board, row.run, self.owner, interval=interval, after_beat=self.look) as heart:
            try:
                self.look()  # to show that it is under way
                values = self._outcome(row, standing, state, heart)
            except LostRun:
                log.warning("%s was taken over by another worker, as this one gave no sign of life", row.run)
                return
            except RunBusyError as busy:  # its worker was given up for dead, and works on
                log.warning("%s", busy)
                self.board.give_back(row.run, self.owner, WAITING if state == RUNNING else TRAINED)
                time.sleep(PAUSE)
                return
            except (KeyboardInterrupt, SystemExit, SaveError):
                self.board.give_back(row.run, self.owner, WAITING if state == RUNNING else TRAINED)
                self.look()
                raise
        seconds = row.seconds + time.monotonic() - began
        self.board.note(row.run, self.owner, seconds=seconds, **values)
        said = f": {values['error']}" if values.get("error") else ""
        log.log(logging.WARNING if said else logging.INFO, "%s is %s%s", row.run, values["state"], said)

    def _outcome(self, row: Row, standing: Standing, state: str, heart: Heart) -> dict[str, Any]:
        """Return what the board is to say of a run; its failure does not stop the sweep."""
        broken = FAILED if state == RUNNING else UNMEASURED
        if row.state in HELD and row.takeovers >= MOST_TAKEOVERS:
            where = f"without getting past step {row.step}"
            return {"state": broken, "error": f"its worker died {row.takeovers + 1} times {where}"}
        try:
            return self._train(row, standing, heart) if state == RUNNING else self._measure(row)
        except Pruned as reason:
            return {"state": PRUNED, "error": str(reason)}
        except (DatabaseError, RunBusyError):
            raise
        except ForetokenError as error:
            return {"state": broken, "error": str(error)}
        except Exception as error:  # a defect of ours or a full memory: the other runs are still worth it
            traceback.print_exc()
            return {"state": broken, "error": f"{type(error).__name__}: {error}"}

    def _train(self, row: Row, standing: Standing, heart: Heart) -> dict[str, Any]:
        from foretoken.training.run.train import train

        recipe = self.sweep.recipes[row.run]
        if row.state in HELD and self._status(row) == records.PRUNED:  # its worker died before it could note that
            raise Pruned((read_record(recipe.run_folder) or {}).get("error"))
        callbacks = [heart, *self._pruning(row, standing)]
        record = train(recipe, accept_changed=self.accept_changed, callbacks=callbacks, measure_test=False)
        metric, known = standing.contestant.metric, record["validation"]
        if known.get(metric) is None:
            raise ConfigError(f"the run has no validation metric {metric}; it has {', '.join(known)}")
        return {"state": TRAINED, "validation": known, "takeovers": 0}

    def _measure(self, row: Row) -> dict[str, Any]:
        from foretoken.inference.evaluate import measure_test

        record = measure_test(self.sweep.recipes[row.run], accept_changed=self.accept_changed)
        return {"state": MEASURED, "test": record["test"]}

    def _pruning(self, row: Row, standing: Standing) -> list[TrainerCallback]:
        if self.file.prune is None:
            return []
        runs = [other.run for other in standing.wanted if other.run != row.run]

        def others() -> list[Row]:
            rows = self.board.rows()
            return [rows[run] for run in runs if run in rows]

        def note(history: Mapping[str, Any]) -> bool:
            return self.board.note(row.run, self.owner, history=history)

        metric, maximise = standing.contestant.metric, standing.maximise
        return [PruneCallback(self.file.prune, metric=metric, maximise=maximise, others=others, note=note)]

    def _propose(self, found: Sequence[Standing]) -> bool:
        """Add a candidate to the first contestant that wants one; its runs come with the next look."""
        for item in found:
            proposal = self.sweep.next_proposal(item)
            if proposal is not None:
                self.board.propose(item.contestant.name, *proposal)
                return True
        return False

    def _refuse_what_lies_elsewhere(self, found: Sequence[Standing]) -> None:
        """Give up when all that is left are test splits of runs whose folders are on machines that do not join in."""
        left = list(_open(found))
        if any(row.state != TRAINED for row in left):
            self._elsewhere_since = None
            return
        now = time.monotonic()
        self._elsewhere_since = self._elsewhere_since or now
        if now - self._elsewhere_since > self.file.database.takeover_after:
            places = ", ".join(sorted({machine_of(row.owner) for row in left}))
            raise ConfigError(
                f"{len(left)} selected runs were trained on {places} and their folders are not here: "
                "give the same command there, or share the folder, to measure their test split"
            )


def _open(found: Sequence[Standing]) -> Iterator[Row]:
    """Yield what is left to do: of the contestant that is furthest behind first, so that all get on together."""
    behind = sorted(found, key=done)
    yield from in_turn([item.to_train for item in behind])
    yield from in_turn([item.to_measure for item in behind])
