"""Heartbeats: a worker raises a number in the run table while it holds a run; others take over runs that stop."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken.errors import ForetokenError
from foretoken.sweeps.database import DatabaseError
from foretoken.sweeps.run_table import HELD, RunRow, RunTable
from foretoken.sweeps.worker_id import is_gone

log = logging.getLogger(__name__)


class LostRun(BaseException):
    """Another worker has taken the run over; not an Exception, as it is no failure of the run."""


class Heartbeat(TrainerCallback):
    """Beats within a ``with`` block; as a callback of the Trainer, ends a run that another worker has taken over."""

    def __init__(
        self, run_table: RunTable, run: str, worker_id: str, *, interval: float, after_beat: Callable[[], object]
    ) -> None:
        self.run_table, self.run, self.worker_id, self.interval = run_table, run, worker_id, interval
        self.is_lost = False
        self.step = 0  # the last optimizer step of the run
        self._after_beat = after_beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat of {run}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Raise LostRun if the run was taken over, else note the step."""
        if self.is_lost:
            raise LostRun(self.run)
        self.step = state.global_step

    def _beat(self) -> None:
        while not self._stop.wait(self.interval):
            try:
                self.is_lost = not self.run_table.beat(self.run, self.worker_id, step=self.step)
                self._after_beat()
            except DatabaseError as error:  # training goes on; the result will need the database, and raises then
                log.warning("%s", error)
                return
            except ForetokenError as error:  # sweep.json cannot be written just now; the run goes on
                log.warning("%s", error)
            if self.is_lost:
                return


class LivenessCheck:
    """Finds runs whose worker has died: at once on this machine, else after `patience` seconds without a heartbeat.

    The seconds are counted by this process, so clocks of machines need not agree. They start anew after an outage of
    the database, in which no worker could beat.
    """

    def __init__(self, run_table: RunTable, *, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.run_table, self.patience, self.clock = run_table, patience, clock
        self._seen: dict[str, tuple[object, float]] = {}

    def is_abandoned(self, row: RunRow) -> bool:
        """Tell whether a run may be taken over from the worker that holds it."""
        if row.state not in HELD:
            return False
        sign, now = (row.owner, row.beat, self.run_table.database.outages), self.clock()
        last, since = self._seen.get(row.run, (None, now))
        if sign != last:
            self._seen[row.run] = (sign, now)
            since = now
        return is_gone(row.owner) or now - since > self.patience


class ParentProcess:
    """The process that started this one as a worker."""

    def __init__(self) -> None:
        self.number = os.getppid()

    @property
    def is_gone(self) -> bool:
        """Whether it has ended: the children of a process that has ended get another parent."""
        return os.getppid() != self.number
