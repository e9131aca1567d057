"""What the studies of this folder share: their arguments, and a file of results that grows by each run as it ends."""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from benchmarks.suite.machine import hardware

from foretoken.data.load import Loaded, load_data
from foretoken.data.options import DataOptions
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.train import train
from research.archive import RECORDS, read_records, write_records

Json = dict[str, Any]


def study_parser(document: str, name: str, *, seeds: Iterable[int]) -> argparse.ArgumentParser:
    """Return the arguments that every study takes."""
    parser = argparse.ArgumentParser(description=document.partition("\n")[0])
    parser.add_argument("--seed", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RECORDS / f"{name}.json.gz")
    return parser


def run_or_show(
    parser: argparse.ArgumentParser,
    wanted: Callable[[argparse.Namespace], Iterable[Json]],
    one_run: Callable[..., Json],
    table: Callable[[list[Json]], str],
) -> None:
    """Run the settings that the output lacks; with ``--table`` print what it has, and run nothing."""
    parser.add_argument("--table", action="store_true", help="print the table of what was measured, and run nothing")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(read_records(chosen.output)["runs"]))
        return
    set_up(chosen.threads)

    def timed(**settings: Any) -> Json:
        began = time.process_time()
        return one_run(**settings) | {"cpu_seconds": round(time.process_time() - began, 1)}

    run_missing(chosen.output, wanted(chosen), timed)


@lru_cache(maxsize=4)
def loaded(data: DataOptions) -> Loaded:
    """Return the documents of a recipe, which most runs of a study share."""
    return load_data(data)


@contextmanager
def trained(settings: Json, **options: Any) -> Iterator[tuple[Json, Path]]:
    """Train in a folder that is gone after the block, which gets the record and the folder of the run."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = build_recipe(settings | {"output": folder, "name": "run"})
        yield train(recipe, data=loaded(recipe.data), **options), recipe.run_folder


def by_seed(runs: Iterable[Json], kind: str, names: Sequence[str]) -> tuple[list[int], dict[str, list[float]]]:
    """Return the seeds that all of these candidates have, and each one's scores on test, in points and that order."""
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for run in runs:
        if run[kind] in found:
            found[run[kind]][run["seed"]] = 100 * run["test"]
    seeds = sorted(set.intersection(*map(set, found.values())))
    return seeds, {name: [scores[seed] for seed in seeds] for name, scores in found.items()}


def set_up(threads: int) -> None:
    """Compute with so many threads, and print no log of single runs."""
    torch.set_num_threads(threads)
    logging.getLogger("foretoken").setLevel(logging.WARNING)


def run_missing(output: Path, wanted: Iterable[Json], one_run: Callable[..., Json]) -> Json:
    """Run the settings that no run of the file has, and write the file after each; return what it holds."""
    found = read_records(output) if output.is_file() else {"machine": hardware(), "runs": []}
    runs = found["runs"]
    for settings in wanted:
        if any(settings.items() <= {name: run.get(name) for name in settings}.items() for run in runs):
            continue
        runs.append(settings | one_run(**settings))
        write_records(output, found)
        print(json.dumps(runs[-1]), flush=True)
    return found
