"""Interleaved timing: candidates take turns in one process, and samples that others disturbed count last."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.suite.tables import is_clean

Calls = Mapping[str, Callable[[], object]]


class Sample(NamedTuple):
    """One call: its seconds, the share of the machine that others took (None: not known), its processor seconds."""

    seconds: float
    foreign: float | None = None
    processor: float = 0.0


def compare(
    candidates: Calls, *, rounds: int = 5, seconds: float = 60.0, warm_up: int = 1, device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Time callables in turn, every other round in reverse order, after uncounted turns of ``warm_up``.

    There are as many ``rounds``, and up to twice as many for as many clean samples of each; after ``seconds`` two are
    enough, clean or not.
    """
    for _ in range(warm_up):
        for call in candidates.values():
            call()
    samples: dict[str, list[Sample]] = {name: [] for name in candidates}
    start, order = time.perf_counter(), list(candidates)
    while not enough(list(samples.values()), rounds, is_late=time.perf_counter() - start > seconds):
        for name in order:
            samples[name].append(sample(candidates[name], device))
        order.reverse()  # whoever follows a long call does so every other time only
    return {name: summary(found) for name, found in samples.items()}


def enough(samples: Sequence[Sequence[Sample]], rounds: int, *, is_late: bool) -> bool:
    """Tell whether to stop after a round."""
    turns, clean = min(map(len, samples)), min(sum(map(is_clean, found)) for found in samples)
    return turns >= (min(2, rounds) if is_late else rounds if clean >= rounds else 2 * rounds)


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what the file of results holds; the median is of the clean samples where there are two, else of all."""
    clean = [one.seconds for one in samples if is_clean(one)]
    return {
        "median": statistics.median(clean if len(clean) > 1 else [one.seconds for one in samples]),
        "fastest": min(one.seconds for one in samples),
        "processor": statistics.median(one.processor for one in samples),
        "clean": len(clean),
        "samples": [list(one) for one in samples],
    }


def sample(call: Callable[[], object], device: str = "cpu") -> Sample:
    """Time one call."""
    synchronise(device)
    busy, own, start = busy_seconds(), time.process_time(), time.perf_counter()
    call()
    synchronise(device)
    wall, own, after = time.perf_counter() - start, time.process_time() - own, busy_seconds()
    if busy is None or after is None:
        return Sample(wall, None, own)
    return Sample(wall, max(0.0, after - busy - own) / (wall * (os.cpu_count() or 1)), own)


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def busy_seconds() -> float | None:
    """Return the CPU seconds that the machine has worked since it started; None where /proc does not say."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
