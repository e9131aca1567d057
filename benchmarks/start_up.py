"""Processor and wall seconds from the command to its end, on a tiny input: `python benchmarks/start_up.py [OTHER_SRC]`.

Each command runs in a process of its own, this tree and another one (the `src` of a checkout) in turn, so that
both meet the same load; `import torch, transformers.Trainer, peft` beside them is what no command could do without.
`train` takes one step; what comes before it is nearly all of it. Writes results/start_up.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from foretoken.bench.machine import hardware
from foretoken.training.run.record import versions

RESULT = Path(__file__).parent / "results" / "start_up.json"
HERE = Path(__file__).resolve().parents[1] / "src"
ROWS = ["text,label", *(f"{'lunch' if number % 2 else 'prize'} {number},{'ham' if number % 2 else 'spam'}"
                        for number in range(40))]  # fmt: skip
RECIPE = "{model: minilm, data: {path: mail.csv}, method: lora, training: {max_steps: 1, eval_every: 1}, name: run}"
COMMANDS = {
    "methods": ["methods"],
    "tasks": ["tasks"],
    "env": ["env"],
    "train, one step": ["train", "recipe.yaml", "--restart"],
    "predict": ["predict", "runs/run", "see you at lunch"],
}


IMPORTS = "import torch, peft; from transformers import Trainer, AutoModelForSequenceClassification"


def seconds(words: list[str], source: Path, folder: str) -> tuple[float, float]:
    """Return the processor and the wall seconds of a call of Python."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def medians(runs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the medians of some runs."""
    processor, wall = (round(statistics.median(values), 2) for values in zip(*runs, strict=True))
    return {"processor_seconds": processor, "wall_seconds": wall, "runs": len(runs)}


def main() -> None:
    """Measure and write."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("before", type=Path, nargs="?", help="src of the checkout to compare with")
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    trees = {"after": HERE} | ({"before": options.before.resolve()} if options.before else {})
    calls = {name: ["-m", "foretoken", *words] for name, words in COMMANDS.items()} | {"imports alone": ["-c", IMPORTS]}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mail.csv").write_text("\n".join(ROWS))
        (Path(folder) / "recipe.yaml").write_text(RECIPE)
        for _ in range(options.repeats):
            for name, words in calls.items():
                for tree, source in trees.items():
                    found.setdefault(name, {}).setdefault(tree, []).append(seconds(words, source, folder))
    load = [round(x, 1) for x in os.getloadavg()]
    commands = {name: {tree: medians(runs) for tree, runs in both.items()} for name, both in found.items()}
    machine = hardware() | {"load_average": load, "versions": versions()}
    RESULT.write_text(json.dumps({"machine": machine, "commands": commands}, indent=1) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
