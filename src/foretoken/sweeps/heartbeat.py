"""Signs of life: while a worker has a run, a thread says so on the board, and learns whether it still has it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken.errors import ForetokenError
from foretoken.sweeps.database import DatabaseError
from foretoken.sweeps.run_table import HELD, Board, Row
from foretoken.sweeps.worker_id import is_gone

log = logging.getLogger(__name__)


class LostRun(BaseException):
    """Another worker has taken the run over; not an Exception, as it is no failure of the run."""


class Heart(TrainerCallback):
    """Beats while the block lasts; as a callback of the Trainer, ends a run that is no longer ours."""

    def __init__(
        self, board: Board, run: str, owner: str, *, interval: float, after_beat: Callable[[], object]
    ) -> None:
        self.board, self.run, self.owner, self.interval = board, run, owner, interval
        self.is_lost = False
        self.step = 0  # that the run is at
        self._after_beat = after_beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heart of {run}", daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the run between two steps, or note how far it is."""
        if self.is_lost:
            raise LostRun(self.run)
        self.step = state.global_step

    def _beat(self) -> None:
        while not self._stop.wait(self.interval):
            try:
                self.is_lost = not self.board.beat(self.run, self.owner, step=self.step)
                self._after_beat()
            except DatabaseError as error:  # training goes on; what follows it will need the database, and say so
                log.warning("%s", error)
                return
            except ForetokenError as error:  # the record cannot be written just now, and the run has still an owner
                log.warning("%s", error)
            if self.is_lost:
                return


class Watch:
    """Finds the runs whose worker is gone: at once on this machine, else by a beat that has stopped.

    Only what was seen by this process counts, so clocks need not agree, and after an outage of the database, in which
    nobody could beat, everybody's time starts anew.
    """

    def __init__(self, board: Board, *, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.board, self.patience, self.clock = board, patience, clock
        self._seen: dict[str, tuple[object, float]] = {}

    def abandoned(self, row: Row) -> bool:
        """Tell whether a run that is held may be taken over."""
        if row.state not in HELD:
            return False
        sign, now = (row.owner, row.beat, self.board.database.outages), self.clock()
        last, since = self._seen.get(row.run, (None, now))
        if sign != last:
            self._seen[row.run] = (sign, now)
            since = now
        return is_gone(row.owner) or now - since > self.patience


class Parent:
    """The process that started this one as a worker; when it is gone, so should we be."""

    def __init__(self) -> None:
        self.number = os.getppid()

    @property
    def is_gone(self) -> bool:
        """Whether it has ended: its children then have another parent."""
        return os.getppid() != self.number
