"""What the studies of this folder share: their arguments, and a file of results that grows by each run as it ends."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from benchmarks.suite.machine import hardware

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
    run_missing(chosen.output, wanted(chosen), one_run)


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
