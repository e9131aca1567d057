"""Inference of AoT P-tuning, as Gavrilov and Balagansky plot it (Figures 3 and 4): time and memory.

Against the prefix length p of P-tuning v1 and v2, and the rank r of AoT P-tuning before its table is fused.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from benchmarks.suite.machine import peak_of
from benchmarks.suite.methods import FORWARD, all_models, base_and_batch, beside_none, case
from benchmarks.suite.models import NONE, predict
from benchmarks.suite.runner import Options, Part

SIZES = ((16, 1), (128, 16), (384, 16))  # tokens, documents
LENGTHS, RANKS = (5, 10, 20, 50, 100), (8, 32, 128, 512)
BY_LENGTH = {"P-tuning v1": "prompt-tuning", "P-tuning v2": "prefix-tuning"}
BY_RANK = {"AoT FC": "fc", "AoT Kronecker": "kronecker"}


def plan(options: Options) -> list[Part]:
    """Return one part per size and type, each with every prefix length and every rank."""
    lengths, ranks = options.pick((5, 20), LENGTHS), options.pick((8,), RANKS)
    cases = [case(NONE, "none"), case("AoT, fused", "fused", name="aot-p-tuning", dtype="float32")]
    cases += [
        case(f"{label}, p = {p}", name=name, num_virtual_tokens=p)
        for (label, name), p in product(BY_LENGTH.items(), lengths)
    ]
    cases += [
        case(f"{label}, r = {r}", name="aot-p-tuning", variant=variant, rank=r)
        for (label, variant), r in product(BY_RANK.items(), ranks)
    ]
    layers = options.layers or options.pick(2, 12)
    return [
        Part(
            f"roberta, {batch} x {n} tokens, {layers} layers, {dtype}",
            options.settings(family="roberta", n=n, batch=batch, layers=layers, cases=cases, dtype=dtype, seconds=10),
        )
        for dtype, (n, batch) in product(options.dtype or ["float32"], SIZES[: options.pick(1, 3)])
    ]


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Time the forward pass of every candidate in turn, then measure what each holds beyond the frozen model."""
    base, batch = base_and_batch(settings)
    with TemporaryDirectory(prefix="foretoken-bench-") as folder:
        models, skipped = all_models(base.eval(), settings["cases"], batch, Path(folder))
        calls = {label: partial(predict, found.eval(), batch) for label, found in models.items()}
        timings = beside_none(calls, settings["effort"])
        memory = {
            label: peak_of(call, settings["device"]) | {"adapter": held_bytes(models[label]) - held_bytes(base)}
            for label, call in calls.items()
        }
    return {"timings": {FORWARD: timings}, "memory": memory, "skipped": skipped}


def held_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers, each once; a table in a file is none of them."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum({tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
