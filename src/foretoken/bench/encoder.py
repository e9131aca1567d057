"""`encoder`: a Longformer's forward pass and its training step, beside transformers' own with the same weights.

The forward pass is the plain model's. The step is prefix-propagation's: forward, loss at [CLS], backward; the
optimiser is left out. ``n`` counts the rows in front of the text, so that transformers has nothing to pad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foretoken.bench.candidates import Model, Models, failure, kept
from foretoken.bench.counts.flops import LayerWork, needed, whole
from foretoken.bench.counts.memory import peak_of, saved_bytes
from foretoken.bench.machine import GEMM_SHAPES, TINY_SHAPES, matrix_limit, synchronise
from foretoken.bench.measure import Effort, compare, prefixed
from foretoken.bench.models import PREFIX_LENGTH, SHAPES, documents, environment, logits_of, loss_of, predict, step
from foretoken.bench.names import CHECKPOINTED, OURS, THEIRS, UNPACKED
from foretoken.bench.run.plan import DTYPES, LENGTHS, LONG_LENGTHS, QUICK_LENGTHS, Options, Part, check_engines

FORWARD, STEP = "forward", "step"
Notify = Callable[[str], object]


def plan(options: Options) -> list[Part]:
    """Return the parts: the main comparison, growth with length and batch, memory."""
    if options.engine:
        from foretoken.attention import Window, engines

        check_engines(options.engine, engines(Window))
    layers = options.layers or (2 if options.quick else 12)
    *short, longest = options.sizes(LENGTHS, QUICK_LENGTHS)
    dtypes = options.dtypes_or(*(("float32",) if options.quick else DTYPES))
    parts = [
        _main(options, dtype, allocator, n=longest, layers=layers)
        for dtype in dtypes
        for allocator in options.allocators_or("default", "tuned")
    ]
    if not options.quick:
        parts += [part for dtype in dtypes for part in _longer(options, dtype, short, layers)]
        parts += _batches(options, options.dtypes_or("float32")[0], min(layers, 4))
    return parts + _memory(options, longest, layers)


def _main(options: Options, dtype: str, allocator: str, *, n: int, layers: int) -> Part:
    """Return the main comparison; our variants are left out where the allocator alone is in question."""
    variants = (
        [UNPACKED, CHECKPOINTED, *(f"{OURS}, {engine}" for engine in options.engine)] if allocator == "tuned" else []
    )
    rounds = 3 if allocator == "tuned" else 2
    return _time(options, dtype, allocator, [THEIRS, OURS, *variants], n=n, layers=layers, rounds=rounds, seconds=90)


def _longer(options: Options, dtype: str, short: list[int], layers: int) -> list[Part]:
    """Return what shows growth with the length; transformers takes too long, and too much memory, beyond 4096."""
    both = [_time(options, dtype, "tuned", [THEIRS, OURS], n=n, layers=layers, rounds=3, seconds=16) for n in short]
    return both + [
        _time(options, dtype, "tuned", [OURS], n=options.size(n), layers=layers, modes=(STEP,), rounds=1, seconds=1)
        for n in LONG_LENGTHS
    ]


def _batches(options: Options, dtype: str, layers: int) -> list[Part]:
    """Return what shows growth with the batch."""
    sizes: dict[str, Any] = {"n": options.size(1024), "layers": layers, "modes": (STEP,)}
    return [
        _time(options, dtype, "tuned", [THEIRS, OURS], **sizes, batch=batch, rounds=2, seconds=25)
        for batch in (1, 2, 4, 8)
    ]


def _memory(options: Options, n: int, layers: int) -> list[Part]:
    """Return the counts of activations, and the peaks of fresh processes with the allocator as it is."""
    dtypes = options.dtypes_or(*(("float32",) if options.quick else DTYPES))
    parts = [
        Part("encoder", f"activations, n {n}, {dtype}", dtype, settings=options.settings(what="activations", n=n))
        for dtype in dtypes
    ]
    longer = [] if options.quick else [(name, options.size(m)) for m in LONG_LENGTHS for name in (OURS, CHECKPOINTED)]
    return parts + [
        Part(
            "encoder",
            f"peak memory of {candidate}, n {tokens}, {dtype}",
            dtype,
            "default",
            options.settings(what="peak", n=tokens, layers=layers, candidate=candidate),
        )
        for dtype in dtypes
        for candidate, tokens in [(THEIRS, n), (OURS, n), (CHECKPOINTED, n), *longer]
    ]


def _time(
    options: Options,
    dtype: str,
    allocator: str,
    candidates: list[str],
    *,
    n: int,
    layers: int,
    batch: int = 1,
    modes: Sequence[str] = (STEP, FORWARD),
    rounds: int,
    seconds: float,
) -> Part:
    settings = options.settings(what="time", n=n, batch=batch, layers=layers, candidates=candidates, modes=modes)
    effort = options.effort(rounds=rounds, seconds=seconds)
    title = f"n {n}, batch {batch}, {layers} layers, {dtype}, {allocator} allocator"
    return Part("encoder", title, dtype, allocator, {**settings, "effort": effort})


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Measure one part."""
    return {"time": measure_time, "activations": measure_activations, "peak": measure_peak}[part.settings["what"]](
        part, notify
    )


def measure_time(part: Part, notify: Notify) -> dict[str, Any]:
    """Time steps and forward passes, and compare what they yield."""
    settings, device = part.settings, part.settings["device"]
    notify("matrix products")
    effort = Effort(**settings["effort"])
    shapes = GEMM_SHAPES if settings["shape"] == "base" else TINY_SHAPES
    limit = matrix_limit(getattr(torch, part.dtype), device, rounds=min(3, effort.rounds), shapes=shapes)
    notify("building the models")
    models = Models(part)
    timings, outputs = {}, dict[str, dict[str, Tensor]]()
    for mode in settings["modes"]:
        outputs[mode] = {}
        calls = calls_of(part, mode, models, outputs[mode])
        found = compare(calls, effort=effort, synchronise=partial(synchronise, device), notify=prefixed(notify, mode))
        timings[mode] = {name: timing.as_dict() for name, timing in found.items()}
        effort = replace(effort, warm_up=0)  # from the second pass on the memory is there, and the models are warm
    differences = models.differences(outputs)
    return {
        "limit": limit,
        "work": work_of(part),
        "timings": timings,
        "differences": differences,
        "failed": failure(differences) if part.dtype == "float32" else None,
    }


def calls_of(part: Part, mode: str, models: Models, outputs: dict[str, Tensor]) -> dict[str, Callable[[], None]]:
    """Return the candidates' calls for a mode, which leave their logits in ``outputs``; each model has run before.

    The first call of a model makes what it keeps (fused weights), on a short text here.
    """
    run, rows = (step, PREFIX_LENGTH) if mode == STEP else (predict, 0)
    batch, calls = batch_of(part, rows=rows), {}
    for name in part.settings["candidates"]:
        if mode == STEP or name not in (UNPACKED, CHECKPOINTED):
            model = models.of(name, mode)
            with environment(model.variables):
                run(model.module, batch_of(part, rows=rows, n=SHAPES[part.settings["shape"]].window))
            calls[name] = kept(outputs, name, model, run, batch)
    return calls


def batch_of(part: Part, *, rows: int, n: int | None = None) -> dict[str, Tensor]:
    """Return documents of n tokens, less the rows that are put in front."""
    settings = part.settings
    lengths = [min(n or settings["n"], settings["n"]) - rows] * settings.get("batch", 1)
    return documents(SHAPES[settings["shape"]], lengths, settings["device"])


def work_of(part: Part) -> dict[str, dict[str, int]]:
    """Return the operations of a step and of a forward pass: of all layers, and of what the prediction needs."""
    settings, shape = part.settings, SHAPES[part.settings["shape"]]
    found = {}
    for mode, num_global in ((STEP, PREFIX_LENGTH + 1), (FORWARD, 1)):
        work = LayerWork(settings["n"] * settings["batch"], shape.hidden, shape.inner, shape.window, num_global)
        found[mode] = {
            "whole": whole(work, settings["layers"], backward=mode == STEP),
            "needed": needed(work, settings["layers"], backward=mode == STEP),
        }
    return found


def measure_activations(part: Part, notify: Notify) -> dict[str, Any]:
    """Count what one inner layer keeps for the backward pass: four layers less two, halved."""
    found: dict[str, float] = {}
    for name in (THEIRS, OURS):
        totals = []
        for layers in (2, 4):
            notify(f"{name}, {layers} layers")
            this = Part(part.benchmark, part.title, part.dtype, part.allocator, {**part.settings, "layers": layers})
            model, batch = Models(this).of(name, STEP), batch_of(this, rows=PREFIX_LENGTH)
            totals.append(kept_bytes(model, batch))
        found[name] = (totals[1] - totals[0]) / 2
    return {"bytes_per_layer": found}


def kept_bytes(model: Model, batch: Mapping[str, Tensor]) -> int:
    """Return the bytes that one step keeps for its backward pass."""
    with environment(model.variables):
        return saved_bytes(lambda: loss_of(logits_of(model.module, batch), batch["attention_mask"]))


def measure_peak(part: Part, notify: Notify) -> dict[str, Any]:
    """Measure the most that one step holds beyond the model, in this fresh process."""
    settings = part.settings
    model = Models(part).of(settings["candidate"], STEP)
    batch = batch_of(part, rows=PREFIX_LENGTH)
    notify("one step")
    with environment(model.variables):
        return {"memory": peak_of(lambda: step(model.module, batch), settings["device"])}
