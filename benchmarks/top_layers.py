"""Seconds of a run's first epoch and of later ones, by how many layers its method acts at, with and without the cache.

    FORETOKEN_DATA=... python -m benchmarks.top_layers [--output benchmarks/results/top_layers] [--rounds 3]

One process; the kinds of run take turns, and each begins with an empty cache of states. An epoch is its steps: what is
measured after it does not count. The first one is given with what filling the cache took, validation and test
documents included. Training documents of 20 Newsgroups, cut to 256 tokens, MiniLM, batches of 16.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Kind:
    """One kind of run."""

    method: str
    layers: str | None
    cache: str

    @property
    def name(self) -> str:
        """What the table calls it."""
        kept = self.layers or ("none" if self.method == "head-only" else "all")
        return f"{self.method}, {kept}" + ("" if self.cache == "off" else f", cached as {self.cache}")


def kinds(method: str) -> list[Kind]:
    """Return the kinds of run that are compared."""
    return [
        Kind(method, None, "off"),
        Kind(method, "last-4", "off"),
        Kind(method, "last-4", "float32"),
        Kind(method, "last-2", "off"),
        Kind(method, "last-2", "float32"),
        Kind(method, "last-2", "float16"),
        Kind("head-only", None, "off"),
        Kind("head-only", None, "float32"),
    ]


def one_run(kind: Kind, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train and return the seconds of every epoch, and of filling the cache."""
    from transformers import TrainerCallback

    from foretoken.training.recipe.recipe import build_recipe
    from foretoken.training.run.train import train
    from foretoken.training.trainer.lower_states import LowerStates

    epochs: list[float] = []
    filling = 0.0

    class Clock(TrainerCallback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            epochs.append(time.perf_counter() - self.began)

    fill = LowerStates.fill

    def timed(self: LowerStates, tables: Any) -> None:
        nonlocal filling
        began = time.perf_counter()
        fill(self, tables)
        filling += time.perf_counter() - began

    training = {
        "epochs": options.epochs,
        "batch_size": 16,
        "num_threads": options.threads,
        "cache_states": kind.cache,
        "learning_rate": 0.01,
    }
    method = {"name": kind.method} | ({"layers": kind.layers} if kind.layers else {})
    data = {"task": "20newsgroups", "max_train": options.documents, "max_test": max(20, options.documents // 4)}
    data["max_validation"] = data["max_test"]
    values = {"model": "minilm", "max_length": 256, "data": data, "method": method, "training": training}
    cache = Path(os.environ["FORETOKEN_CACHE"])
    shutil.rmtree(cache, ignore_errors=True)  # let the run compute the states anew
    LowerStates.fill = timed  # type: ignore[method-assign]
    try:
        record = train(build_recipe(values | {"output": folder, "name": "run"}), callbacks=[Clock()])
    finally:
        LowerStates.fill = fill  # type: ignore[method-assign]
    size = sum(file.stat().st_size for file in cache.rglob("*"))
    first = epochs[0] + filling
    return {"filling": filling, "first": first, "later": statistics.median(epochs[1:]), "bytes": size} | {
        "parameters": record["parameters"]["trainable"]
    }


def table(results: dict[str, dict[str, float]]) -> str:
    """Return the medians as a table of Markdown."""
    lines = ["| run | first epoch | of it filling | later epochs | on disk |", "| --- | --- | --- | --- | --- |"]
    for name, found in results.items():
        times = " | ".join(f"{found[part]:.1f} s" for part in ("first", "filling", "later"))
        lines.append(f"| {name} | {times} | {found['bytes'] / 1e6:,.0f} MB |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/top_layers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--method", default="prefix-propagation")
    options = parser.parse_args()
    from benchmarks.suite.machine import hardware, versions
    from foretoken.files import write_json

    runs: dict[str, list[Any]] = {kind.name: [] for kind in kinds(options.method)}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FORETOKEN_CACHE"] = cache
        for kind in kinds(options.method) * options.rounds:
            with tempfile.TemporaryDirectory() as folder:
                found = one_run(kind, options, folder)
            runs[kind.name].append(found)
            print(f"{kind.name}: {found['first']:.1f} s, then {found['later']:.1f} s an epoch", flush=True)
    medians = {
        name: {part: statistics.median(run[part] for run in found) for part in found[0]} for name, found in runs.items()
    }
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "versions": versions()}
    facts |= {name: getattr(options, name) for name in ("rounds", "documents", "epochs", "threads", "method")}
    facts["load_average"] = {"before": load, "after": os.getloadavg()[0]}
    write_json(options.output.with_suffix(".json"), facts | {"medians": medians, "runs": runs})
    print(table(medians))
    print(json.dumps(facts["load_average"]))


if __name__ == "__main__":
    main()
