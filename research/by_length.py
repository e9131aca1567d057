"""Is prefix-propagation better than prefix-tuning the longer the document? ``python -m research.by_length``.

FORETOKEN_DATA names the raw data. Articles of Hyperpartisan and posts of 20 Newsgroups with over 1,024 tokens, read
at 512, 1,024 and 2,048 of them by MiniLM lengthened to 2,048 with a window of 256, every layer with a prefix, each
method by its defaults, from a head that starts at random and has a hidden layer. Five folds: every document is tested
once a seed. The test is the slope of the difference in accuracy against the logarithm of the length, over documents.
Resumable; `--table` prints what `research/claims.md` shows.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.lengthening import resolve_source
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.train import train
from research.shared import Json, run_or_show, study_parser

LENGTHS = (512, 1024, 2048)
METHODS = ("prefix-propagation", "prefix-tuning")
TRAINING: dict[str, Json] = {
    "hyperpartisan": {"epochs": 8, "batch_size": 4, "metric": "accuracy"},
    "20newsgroups": {"epochs": 4, "batch_size": 8, "metric": "accuracy"},
}
FOLDS = 5


@cache
def long_documents(task: str) -> Path:
    """Write the documents of a task that have more than 1,024 tokens to a file, and return it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_source("minilm"))
    data = load_data(DataOptions(task=task))
    rows = [
        {"text": text, "label": data.labels[label]}
        for split in data.splits.values()
        for text, label in zip(split["text"], split["label"], strict=True)
        if len(text) > 2048 and len(tokenizer(text)["input_ids"]) > 1024
    ]
    file = Path(tempfile.mkdtemp(), f"{task}.jsonl")
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def settings(task: str, method: str, length: int, seed: int, fold: int) -> Json:
    """Return the recipe of a run."""
    training = TRAINING[task] | {"seed": seed, "precision": "bf16", "num_threads": 1, "fit_head": False}
    return {
        "model": "minilm",
        "lengthen": {"max_length": 2048, "attention_window": 256},
        "max_length": length,
        "max_tokens": length,
        "baselines": False,
        "head": {"pool": "mean", "hidden": True},
        "data": {"path": str(long_documents(task)), "folds": FOLDS, "fold": fold},
        "method": method,
        "training": training,
    }


def one_run(task: str, method: str, length: int, seed: int, fold: int) -> Json:
    """Train, and return which documents of the fold were answered rightly, in the order of their ids."""
    import pyarrow.parquet as parquet

    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        train(build_recipe(settings(task, method, length, seed, fold) | {"output": folder, "name": "run"}))
        rows: list[dict[str, Any]] = parquet.read_table(Path(folder, "run", "predictions.parquet")).to_pylist()
    tested = sorted((row["id"], row["label"] == row["prediction"]) for row in rows if row["split"] == "test")
    right = "".join(str(int(is_right)) for _, is_right in tested)
    return {"right": right, "cpu_seconds": round(time.process_time() - began, 1)}


def table(runs: list[Json]) -> str:
    """Return the accuracies by length, and the slope of their difference, as Markdown."""
    lines = ["| task | method | documents | seeds | 512 | 1,024 | 2,048 |", "| --- " * 7 + "|"]
    slopes = []
    for task in TRAINING:
        by_method = {name: right_by_length(runs, task, name) for name in METHODS}
        seeds = sorted(set.intersection(*(seeds for seeds, _ in by_method.values())))
        if not seeds:
            continue
        for name, (_, right) in by_method.items():
            shares = " | ".join(f"{100 * row.mean():.1f}" for row in right)
            lines.append(f"| {task} | {name} | {right.shape[1]} | {len(seeds)} | {shares} |")
        first, second = (by_method[name][1] for name in METHODS)
        slope = 100 * (first - second)[[0, -1]].T @ np.array([-0.5, 0.5])  # points a doubling, of each document
        chance = np.random.default_rng(0)
        means = [slope[chance.integers(0, len(slope), len(slope))].mean() for _ in range(10_000)]
        low, high = np.percentile(means, [2.5, 97.5])
        slopes.append(
            f"{task}: {slope.mean():+.2f} points a doubling of the length ({low:+.2f} to {high:+.2f}); a slope of "
            f"{2.8 * float(np.std(means)):.1f} would be seen"
        )
    return "\n".join([*lines, "", *slopes])


def right_by_length(runs: list[Json], task: str, method: str) -> tuple[set[int], np.ndarray]:
    """Return the seeds that are whole, and for each length and document the share of them that answered rightly."""
    found: dict[tuple[int, int], dict[int, str]] = {}
    for run in runs:
        if (run["task"], run["method"]) == (task, method):
            found.setdefault((run["seed"], run["length"]), {})[run["fold"]] = run["right"]
    whole = {seed for seed, _ in found if all(len(found.get((seed, length), {})) == FOLDS for length in LENGTHS)}

    def answers(seed: int, length: int) -> list[int]:
        folds = found[seed, length]
        return [int(letter) for fold in sorted(folds) for letter in folds[fold]]

    return whole, np.array([np.mean([answers(seed, length) for seed in whole], axis=0) for length in LENGTHS])


def wanted(chosen: Namespace) -> list[Json]:
    """Return the settings of the runs that were asked for."""
    return [
        {"task": task, "method": method, "length": length, "seed": seed, "fold": fold}
        for seed in chosen.seed
        for task in chosen.task
        for fold in range(FOLDS)
        for length in LENGTHS
        for method in METHODS
    ]


def main() -> None:
    """Run what the output lacks, seed by seed."""
    parser = study_parser(__doc__, "by_length", seeds=range(3))
    parser.add_argument("--task", nargs="+", choices=TRAINING, default=list(TRAINING))
    run_or_show(parser, wanted, one_run, table)


if __name__ == "__main__":
    main()
