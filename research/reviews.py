"""A small folder of own texts: 320 reviews made of SST-2 sentences, TF-IDF beside prefixes and LoRA by their defaults.

    FORETOKEN_DATA=... python -m research.reviews [--method NAME ...] [--seed 0 1 2] [--epochs 8] [--bf16]

A review is five sentences of one label. Those to learn from are of SST-2's training sentences (phrases of fewer than
six words left out), the test is made of the official dev set, whose sentences are in no review of the training part.
A seed draws all reviews anew, and all methods of a seed have the same ones: which sentences one happens to have matters
as much as the method. The recipe is README's without `lengthen`. Runs that the output holds already are not repeated.
"""

from __future__ import annotations

import csv
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.train import train
from research.shared import run_missing, set_up, study_parser

METHODS: dict[str, dict[str, Any]] = {
    "tf-idf": {"name": "tf-idf"},
    "head-only": {"name": "head-only"},
    "prefix-tuning": {"name": "prefix-tuning"},
    "prefix-propagation": {"name": "prefix-propagation", "num_virtual_tokens": 8},
    "decoupled-prefix": {"name": "decoupled-prefix"},
    "lora": {"name": "lora", "r": 8},
}
SENTENCES, TRAIN, TEST, LEAST_WORDS = 5, 320, 160, 6


def reviews(rows: Iterable[tuple[str, str]], number: int, seed: int) -> list[tuple[str, str]]:
    """Return so many reviews, half of each label, no sentence twice."""
    shuffled = random.Random(seed)
    kinds: dict[str, list[str]] = {}
    for text, label in rows:
        if len(text.split()) >= LEAST_WORDS:
            kinds.setdefault(label, []).append(text)
    found = []
    for label, texts in sorted(kinds.items()):
        taken = shuffled.sample(sorted(set(texts)), SENTENCES * number // len(kinds))
        found += [(" ".join(taken[at : at + SENTENCES]), label) for at in range(0, len(taken), SENTENCES)]
    shuffled.shuffle(found)
    return found


def write(path: Path, rows: Sequence[tuple[str, str]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def one_run(
    texts: dict[str, list[tuple[str, str]]], method: str, seed: int, epochs: int, precision: str
) -> dict[str, Any]:
    """Train a method on the reviews that a seed draws and return what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = {"train": TRAIN, "validation": TEST // 2, "test": TEST}
        parts = {
            part: write(Path(folder) / f"{part}.csv", reviews(texts[part], number, 3 * seed + at))
            for at, (part, number) in enumerate(numbers.items())
        }
        recipe = {
            "model": "minilm",
            "data": parts,
            "method": METHODS[method],
            "training": {"epochs": epochs, "seed": seed, "precision": precision},
            "output": folder,
            "name": "run",
        }
        began = time.perf_counter()
        record = train(build_recipe(recipe))
    scores = {part: record[part]["accuracy"] for part in ("validation", "test")}
    return {**scores, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    """Run what the output lacks."""
    parser = study_parser(__doc__, "reviews", seeds=range(3))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    chosen = parser.parse_args()
    set_up(chosen.threads)
    splits = load_data(DataOptions(task="sst2")).splits
    texts = {part: list(zip(splits[part]["text"], map(str, splits[part]["label"]), strict=True)) for part in splits}
    precision = "bf16" if chosen.bf16 else "fp32"
    wanted = [
        {"method": method, "seed": seed, "epochs": chosen.epochs, "precision": precision}
        for seed in chosen.seed
        for method in chosen.method
    ]
    run_missing(chosen.output, wanted, partial(one_run, texts))


if __name__ == "__main__":
    main()
