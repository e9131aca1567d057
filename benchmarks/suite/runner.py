"""What a benchmark is asked for, and its parts, each measured in a process of its own."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

NAMES = {
    "encoder": "a Longformer's forward pass and training step, time and memory, beside transformers",
    "families": "the other packed families over documents of real lengths, beside transformers' padding",
    "methods": "what each method costs beside the same model without an adapter",
    "aot": "inference of AoT P-tuning by rank, beside P-tuning v1 and v2 by prefix length",
    "mixed": "batches in which every document has an adapter of its own, beside one adapter's batch and one by one",
    "serve": "the engine of foretoken serve: adapters in memory, mixed and single requests, cold adapters, overload",
    "predict": "short texts from a file to their labels, beside transformers' pipeline and sentence-transformers",
}


@dataclass(frozen=True)
class Options:
    """What a benchmark is asked for; None: its own default."""

    tiny: bool = False
    layers: int | None = None
    threads: int | None = None
    dtype: Sequence[str] | None = None
    device: str = "cpu"
    rounds: int | None = None
    part: Sequence[str] | None = None

    def size(self, tokens: int) -> int:
        """Return a number of tokens, fewer for the tiny shape, whose window is 16 where the base one's is 512."""
        return max(8, tokens // 32) if self.tiny else tokens

    def pick(self, small: Any, usual: Any) -> Any:
        """Return one of two values."""
        return small if self.tiny else usual

    def settings(self, *, rounds: int = 5, seconds: float = 60, **own: Any) -> dict[str, Any]:
        """Return what a part's ``measure`` is given."""
        effort = {"rounds": self.rounds or self.pick(1, rounds), "seconds": seconds, "device": self.device}
        common = {"shape": self.pick("tiny", "base"), "device": self.device, "threads": self.threads}
        return {**common, "dtype": "float32", "effort": effort, **own}


class Part(NamedTuple):
    """A measurement: its title, and plain values for the benchmark's ``measure``."""

    title: str
    settings: dict[str, Any]


def run(name: str, options: Options, output: Path) -> dict[str, Any]:
    """Measure the parts, and write the file anew after each: what was measured is kept, whatever happens."""
    from benchmarks.suite.machine import hardware, versions
    from foretoken.files import write_json

    parts: list[Part] = import_module(f"benchmarks.suite.{name}").plan(options)
    values: dict[str, Any] = {"benchmark": name, "started": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    values |= {"options": asdict(options), "hardware": hardware(), "versions": versions(), "results": []}
    for part in parts:
        if not options.part or any(text in part.title for text in options.part):
            start = time.perf_counter()
            values["results"].append(in_own_process(name, part))
            write_json(output, values)
            print(f"{part.title}: {time.perf_counter() - start:.0f} s", flush=True)
    return values


def in_own_process(name: str, part: Part) -> dict[str, Any]:
    """Measure a part in a fresh process; an ``error`` stands for what was not measured."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            found = pool.submit(measured, name, part.settings).result()
        except Exception as error:  # the other parts are still worth measuring
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return {"title": part.title, "settings": part.settings, **found}


def measured(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a part measured."""
    import torch

    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    found: dict[str, Any] = import_module(f"benchmarks.suite.{name}").measure(settings)
    return {"threads": torch.get_num_threads(), **json.loads(json.dumps(found))}


def failures(values: dict[str, Any]) -> list[str]:
    """Return one line per part that failed, or whose numbers are not transformers'."""
    said = ((result["title"], result.get("error") or result.get("failed")) for result in values["results"])
    return [f"{title}: {reason}" for title, reason in said if reason]
