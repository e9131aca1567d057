"""What `foretoken train --find-rate` finds, and how long it takes, by how many steps its rounds have.

    FORETOKEN_DATA=... python -m research.rate_search [--task sst2 wnut17] [--method lora ...] [--output FILE]

The settings are those of `ablation.py`, in bf16. The run that follows is trained at each rate that was found, and
measured on validation, beside one at the method's own rate.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from foretoken.training.options import Recipe
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run import find_rate
from foretoken.training.run.prepare import prepare
from foretoken.training.run.train import train
from research.ablation import TASKS
from research.shared import run_missing, set_up, study_parser

SCHEDULES = {
    "8 x 10, 4 x 20, 2 x 40": ((8, 10), (4, 20), (2, 40)),
    "8 x 6, 4 x 8, 2 x 14": ((8, 6), (4, 8), (2, 14)),
}


def recipe_of(task: str, method: str, folder: str, **training: Any) -> Recipe:
    """Return a run of the ablation, by the method's defaults."""
    setting = TASKS[task]
    training = {**setting["training"], "precision": "bf16", **training}
    training["eval_every"] = training["max_steps"]
    return build_recipe(
        {**setting, "model": "minilm", "method": method, "training": training, "output": folder, "name": "run"}
    )


def search(task: str, method: str, seed: int, rounds: str) -> dict[str, Any]:
    """Search in these rounds."""
    find_rate.ROUNDS = SCHEDULES[rounds]
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(task, method, folder, seed=seed)
        return find_rate.find_rate(recipe, prepare(recipe), checkpoints=Path(folder))


def score(task: str, method: str, seed: int, rate: float) -> dict[str, Any]:
    """Train at a rate, and measure on validation."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(task, method, folder, seed=seed, learning_rate=rate)
        record = train(recipe, measure_test=False)
        return {recipe.training.metric: record["validation"][recipe.training.metric]}


def main() -> None:
    """Run what the output lacks."""
    parser = study_parser(__doc__, "rate_search", seeds=[0])
    parser.add_argument("--task", nargs="+", choices=TASKS, default=["sst2", "wnut17"])
    parser.add_argument("--method", nargs="+", default=["lora", "prefix-propagation"])
    chosen = parser.parse_args()
    set_up(chosen.threads)
    pairs = [
        {"task": task, "method": method, "seed": seed}
        for task in chosen.task
        for method in chosen.method
        for seed in chosen.seed
    ]
    found = run_missing(chosen.output, [pair | {"rounds": rounds} for pair in pairs for rounds in SCHEDULES], search)
    rates = [
        pair | {"rate": rate}
        for pair in pairs
        for rate in sorted(
            {run["chosen"] for run in found["runs"] if "chosen" in run and pair.items() <= run.items()}
            | {recipe_of(pair["task"], pair["method"], "runs").training.peak_learning_rate}
        )
    ]
    run_missing(chosen.output, rates, score)


if __name__ == "__main__":
    main()
