"""Interleaved timing: candidates take turns in one process, and samples that others disturbed count last."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOREIGN_LIMIT = 0.08  # a sample is clean while other processes take less than this share of the machine
_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal


@dataclass(frozen=True)
class Sample:
    """One call: its seconds, the share of the machine that others took (None: not known), and its processor seconds."""

    seconds: float
    foreign: float | None
    processor: float = field(default=0.0, compare=False)

    @property
    def is_clean(self) -> bool:
        """Tell whether the machine was ours, as far as it is known."""
        return self.foreign is None or self.foreign < FOREIGN_LIMIT


@dataclass
class Timing:
    """The samples of one candidate."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def clean(self) -> list[float]:
        """Return the seconds of the clean samples."""
        return [sample.seconds for sample in self.samples if sample.is_clean]

    @property
    def median(self) -> float:
        """Return the median of the clean samples where there are two, else of all.

        >>> Timing([Sample(1.0, 0.0), Sample(1.2, 0.0), Sample(9.0, 0.5)]).median
        1.1
        """
        clean = self.clean
        return statistics.median(clean if len(clean) > 1 else [sample.seconds for sample in self.samples])

    def as_dict(self) -> dict[str, Any]:
        """Return what the file of results holds."""
        return {
            "median": self.median,
            "fastest": min(sample.seconds for sample in self.samples),
            "processor": statistics.median(sample.processor for sample in self.samples),
            "clean": len(self.clean),
            "samples": [[sample.seconds, sample.foreign] for sample in self.samples],
        }


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: so many turns of every candidate, and so many clean samples of each.
        seconds: after this time two turns are enough, clean or not; None: however long it takes.
        warm_up: turns that are not counted.
    """

    rounds: int = 5
    seconds: float | None = 60.0
    warm_up: int = 1

    @property
    def least(self) -> int:
        """Return how many turns there are in any case."""
        return min(2, self.rounds)

    def is_enough(self, timings: Mapping[str, Timing], elapsed: float) -> bool:
        """Tell whether to stop after a round."""
        done = min(len(timing.samples) for timing in timings.values())
        if self.seconds is not None and elapsed > self.seconds and done >= self.least:
            return True
        return done >= self.rounds and all(
            len(timing.clean) >= self.rounds or done >= 2 * self.rounds for timing in timings.values()
        )


def compare(
    candidates: Mapping[str, Callable[[], object]],
    *,
    effort: Effort,
    synchronise: Callable[[], object] = lambda: None,
    notify: Callable[[str], object] = lambda note: None,
) -> dict[str, Timing]:
    """Time callables in turn, every other round in reverse order, until ``effort`` is satisfied.

    >>> timings = compare({"sum": lambda: sum(range(10))}, effort=Effort(rounds=3))
    >>> len(timings["sum"].samples) >= 3
    True
    """
    for _ in range(effort.warm_up):
        for name, call in candidates.items():
            notify(f"warm-up: {name}")
            call()
            synchronise()
    timings = {name: Timing() for name in candidates}
    start, order = time.perf_counter(), list(candidates)
    while True:
        for name in order:
            notify(f"round {len(timings[name].samples) + 1}: {name}")
            timings[name].samples.append(sample(candidates[name], synchronise))
        if effort.is_enough(timings, time.perf_counter() - start):
            return timings
        order.reverse()  # whoever follows a long call does so every other time only


def prefixed(notify: Callable[[str], object], prefix: str) -> Callable[[str], object]:
    """Return a ``notify`` that says first what the notes are about."""
    return lambda note: notify(f"{prefix}, {note}")


def sample(call: Callable[[], object], synchronise: Callable[[], object] = lambda: None) -> Sample:
    """Time one call."""
    synchronise()
    busy, own, start = busy_seconds(), time.process_time(), time.perf_counter()
    call()
    synchronise()
    wall, own = time.perf_counter() - start, time.process_time() - own
    after = busy_seconds()
    if busy is None or after is None:
        return Sample(wall, None, own)
    return Sample(wall, foreign_share(after - busy, own, wall, os.cpu_count() or 1), own)


def foreign_share(busy: float, own: float, wall: float, cpus: int) -> float:
    """Return the share of the machine that others took, from the CPU seconds of all and of this process.

    >>> foreign_share(busy=3.0, own=1.0, wall=2.0, cpus=2)
    0.5
    """
    return max(0.0, busy - own) / max(wall * cpus, 1e-9)


def busy_seconds() -> float | None:
    """Return the CPU seconds that the machine has worked since it started; None where /proc does not say."""
    try:
        line = _STAT.read_text().split("\n", 1)[0].split()
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    numbers = [int(word) for word in line[1:9]]
    return sum(numbers[index] for index in _BUSY) / ticks if len(numbers) > max(_BUSY) else None
