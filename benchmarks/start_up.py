"""Processor and wall seconds from the command to its end, on a tiny input: `python benchmarks/start_up.py OTHER_SRC`.

Each command runs in a process of its own, this tree and another one (the `src` of a checkout) in turn, so that
both meet the same load. `train` takes one step; what comes before it is nearly all of it. Writes results/start_up.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "start_up.json"
HERE = Path(__file__).resolve().parents[1] / "src"
ROWS = ["text,label", *(f"{'lunch' if number % 2 else 'prize'} {number},{'ham' if number % 2 else 'spam'}"
                        for number in range(40))]  # fmt: skip
RECIPE = "{model: minilm, data: {path: mail.csv}, method: lora, training: {max_steps: 1, eval_every: 1}, name: run}"
COMMANDS = {
    "methods": ["methods"],
    "tasks": ["tasks"],
    "train, one step": ["train", "recipe.yaml", "--restart"],
    "predict": ["predict", "runs/run", "see you at lunch"],
}


def seconds(words: list[str], source: Path, folder: str) -> tuple[float, float]:
    """Return the processor and the wall seconds of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "foretoken", *words], cwd=folder, env=environment, check=True,
                   capture_output=True)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("before", type=Path, help="src of the checkout to compare with")
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    trees = {"before": options.before.resolve(), "after": HERE}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mail.csv").write_text("\n".join(ROWS))
        (Path(folder) / "recipe.yaml").write_text(RECIPE)
        for _ in range(options.repeats):
            for name, words in COMMANDS.items():
                for tree, source in trees.items():
                    found.setdefault(name, {}).setdefault(tree, []).append(seconds(words, source, folder))
    load = os.getloadavg()
    commands = {
        name: {
            tree: {
                "processor_seconds": round(statistics.median(run[0] for run in runs), 2),
                "wall_seconds": round(statistics.median(run[1] for run in runs), 2),
                "runs": len(runs),
            }
            for tree, runs in both.items()
        }
        for name, both in found.items()
    }
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": [round(x, 1) for x in load],
    }
    RESULT.write_text(json.dumps({"machine": machine, "commands": commands}, indent=1) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
