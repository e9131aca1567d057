"""What LoRA, BitFit, kernel propagation and the decoupled prefix cost on Longformer, beside no adapter.

On a machine that others use as well: one thread, and its processor time instead of the clock's. Candidates take turns;
medians. ``PYTHONPATH=src python -m benchmarks.trained_maps --layers 3 --tokens 1024 out.json``; with the ``src`` of
another version on the path it measures that one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.suite.machine import hardware
from benchmarks.suite.methods import build, case, with_prefix
from benchmarks.suite.models import NONE, SHAPES, documents, model, predict, step

CASES = [
    case(NONE, "none"),
    *with_prefix("prefix-propagation", 8),
    *(case(name, name=name) for name in ("kernel-propagation", "decoupled-prefix", "lora", "bitfit")),
]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = SHAPES["base"]
    base = model("longformer", shape, layers=options.layers, max_length=options.tokens + 100)
    batch = documents(shape, [options.tokens])
    found: dict[str, dict[str, list[float]]] = {"forward": {}, "step": {}}
    with TemporaryDirectory() as folder:
        models = {one["label"]: build(base, one, Path(folder) / one["label"]) for one in CASES}
    for mode, run in (("forward", predict), ("step", step)):
        for number in range(options.rounds + 1):  # the first is the warm-up
            for label, one in models.items():
                one.train(mode == "step")
                start = time.process_time()
                run(one, batch)
                if number:
                    found[mode].setdefault(label, []).append(time.process_time() - start)
    sizes = {"layers": options.layers, "tokens": options.tokens, "batch": 1, "threads": 1, "dtype": "float32"}
    record = {"settings": sizes, "hardware": hardware(), "processor_seconds": found}
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    for mode, samples in found.items():
        medians = {label: statistics.median(values) for label, values in samples.items()}
        for label, seconds in medians.items():
            beside = [seconds / medians[other] for other in (NONE, "prefix-propagation, P = 8")]
            print(f"{mode:8} {label:28} {seconds:7.3f} s  {beside[0]:.3f} of none  {beside[1]:.3f} of P = 8")


if __name__ == "__main__":
    main()
