"""`aot`: ahead-of-time P-tuning as it is trained (fc, kronecker), and served from a fused table.

``--grid`` measures what Gavrilov and Balagansky plot (Figures 3 and 4): the time and memory of inference against the
prefix length p of P-tuning v1 and v2, and against the rank r of AoT P-tuning before its table is fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from foretoken.bench.counts.memory import peak_of
from foretoken.bench.measure import prefixed
from foretoken.bench.methods import FORWARD, ROOM, all_models, aot_cases, beside_none, case, part_of
from foretoken.bench.methods import measure as measure_methods
from foretoken.bench.models import SHAPES, documents, longformer, predict, roberta
from foretoken.bench.names import NONE
from foretoken.bench.run.plan import Options, Part
from foretoken.errors import ConfigError

LENGTHS, RANKS = (5, 10, 20, 50, 100), (8, 32, 128, 512)
QUICK_LENGTHS, QUICK_RANKS = (5, 20), (8, 32)
SIZES, QUICK_SIZES = ("1x16", "16x128", "16x384"), ("2x32",)  # documents x tokens
FUSED = "AoT, fused"
BY_LENGTH = {"P-tuning v1": "prompt-tuning", "P-tuning v2": "prefix-tuning"}
BY_RANK = {"AoT FC": "fc", "AoT Kronecker": "kronecker"}
Notify = Callable[[str], object]


def plan(options: Options) -> list[Part]:
    """Return one part per model and size."""
    if options.grid:
        return grid(options)
    return [
        part_of(
            "aot",
            options,
            dtype,
            allocator,
            family,
            [case(NONE, "none"), *aot_cases("float16", "float32")],
            n=n,
            batch=batch,
            rounds=9,
            seconds=20,
        )
        for dtype in options.dtypes_or("float32")
        for allocator in options.allocators_or("tuned")
        for family, n, batch in (("longformer", 4096, 1), ("roberta", 128, 64), ("roberta", 512, 8))
    ]


def grid(options: Options) -> list[Part]:
    """Return one part per model, size and type, each with every prefix length and every rank."""
    sizes = [read_size(text) for text in options.grid_size or (QUICK_SIZES if options.quick else SIZES)]
    lengths = options.prefix_length or list(QUICK_LENGTHS if options.quick else LENGTHS)
    ranks = options.rank or list(QUICK_RANKS if options.quick else RANKS)
    cases = [case(NONE, "none", only_forward=True)]
    cases.append(case(FUSED, "fused", only_forward=True, name="aot-p-tuning", dtype="float32"))
    cases += [
        case(f"{label}, p = {p}", only_forward=True, name=name, num_virtual_tokens=p)
        for (label, name), p in itertools.product(BY_LENGTH.items(), sorted(set(lengths)))
    ]
    cases += [
        case(f"{label}, r = {r}", only_forward=True, name="aot-p-tuning", variant=variant, rank=r)
        for (label, variant), r in itertools.product(BY_RANK.items(), sorted(set(ranks)))
    ]
    parts = []
    for dtype, allocator, family, (batch, n) in itertools.product(
        options.dtypes_or("float32"), options.allocators_or("tuned"), options.family or ["roberta"], sizes
    ):
        settings = options.settings(
            what="grid",
            family=family,
            n=n,
            batch=batch,
            layers=options.layers or 12,
            room=max(ROOM, *lengths),
            cases=cases,
            effort=options.effort(rounds=5, seconds=10),
        )
        title = f"{family}, {batch} x {n} tokens, {settings['layers']} layers, {dtype}, {allocator} allocator"
        parts.append(Part("aot", title, dtype, allocator, settings))
    return parts


def read_size(text: str) -> tuple[int, int]:
    """Return documents and tokens per document.

    >>> read_size("16x128")
    (16, 128)
    """
    batch, _, tokens = text.partition("x")
    if not (batch.isdecimal() and tokens.isdecimal() and int(batch) and int(tokens)):
        raise ConfigError(f"--grid-size: got {text!r}, expected documents x tokens, e.g. 16x128")
    return int(batch), int(tokens)


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Measure a part of the grid, or time forward passes and steps as `methods` does."""
    return measure_grid(part, notify) if part.settings.get("what") == "grid" else measure_methods(part, notify)


def measure_grid(part: Part, notify: Notify) -> dict[str, Any]:
    """Time the forward pass of every candidate in turn, then measure what each holds beyond the frozen model."""
    settings, device = part.settings, part.settings["device"]
    make = longformer if settings["family"] == "longformer" else roberta
    shape = SHAPES[settings["shape"]]
    base = make(
        shape,
        layers=settings["layers"],
        max_length=settings["n"] + settings["room"],
        dtype=getattr(torch, part.dtype),
        device=device,
    ).eval()
    batch = documents(shape, [settings["n"]] * settings["batch"], device)
    with TemporaryDirectory(prefix="foretoken-bench-") as folder:
        models, skipped = all_models(base, settings["cases"], batch, Path(folder), notify)
        calls = {label: partial(predict, model.eval(), batch) for label, (model, _) in models.items()}
        timings = beside_none(calls, settings, prefixed(notify, FORWARD))
        frozen = held_bytes(base)
        memory = {
            label: peak_of(call, device) | {"adapter": held_bytes(models[label][0]) - frozen}
            for label, call in calls.items()
        }
    return {"timings": {FORWARD: timings}, "memory": memory, "skipped": skipped}


def held_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers, each once; a table in a file is none of them."""
    tensors: Sequence[torch.Tensor] = [*model.parameters(), *model.buffers()]
    return sum({tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
