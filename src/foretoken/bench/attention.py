"""`attention`: window + global attention alone, by engine and length, beside transformers' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.attention import Window, attend, engines
from foretoken.bench.candidates import largest
from foretoken.bench.machine import synchronise
from foretoken.bench.measure import Effort, compare, prefixed
from foretoken.bench.models import SHAPES, Shape
from foretoken.bench.names import THEIRS
from foretoken.bench.run.plan import DTYPES, LENGTHS, LONG_LENGTHS, QUICK_LENGTHS, Options, Part

REFERENCE = "reference"
ELSEWHERE = {"cpu": "flex", "cuda": "block"}  # the engine that is for the other device
COMPARED_HEADS = 2  # of the dense reference, whose memory grows with the square of the length
LONGEST_COMPARED = 4096
Notify = Callable[[str], object]
Call = Callable[[], Tensor]


def plan(options: Options) -> list[Part]:
    """Return one part per length, type and allocator."""
    sizes = options.sizes((*LENGTHS, *LONG_LENGTHS), QUICK_LENGTHS)
    return [
        Part(
            "attention",
            f"n {n}, {dtype}, {allocator} allocator",
            dtype,
            allocator,
            options.settings(n=n, effort=options.effort(rounds=7, seconds=6), theirs=n <= options.size(4096)),
        )
        for dtype in options.dtypes_or(*DTYPES)
        for allocator in options.allocators_or("tuned")
        for n in sizes
    ]


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Time every engine, and compare each with the reference."""
    settings, shape = part.settings, SHAPES[part.settings["shape"]]
    inputs = Inputs(shape, settings["n"], getattr(torch, part.dtype), settings["device"])
    calls = candidates(inputs, with_theirs=settings["theirs"])
    effort, timings = Effort(**settings["effort"]), {}
    for mode, wrap in (("forward", without_gradients), ("forward and backward", with_gradients)):
        found = compare(
            {name: wrap(call, inputs) for name, call in calls.items()},
            effort=effort,
            synchronise=partial(synchronise, settings["device"]),
            notify=prefixed(notify, mode),
        )
        timings[mode] = {name: timing.as_dict() for name, timing in found.items()}
    compared = settings["n"] <= LONGEST_COMPARED
    return {"timings": timings, "differences": differences(inputs, calls) if compared else {}}


class Inputs:
    """Random queries, keys and values (1, H, N, K) of one document, whose first token is global."""

    def __init__(self, shape: Shape, n: int, dtype: torch.dtype, device: str) -> None:
        self.shape = shape
        size = (1, shape.heads, n, shape.hidden // shape.heads)
        self.tensors = [torch.randn(size).to(dtype).to(device).requires_grad_() for _ in range(3)]
        self.gradient = torch.randn(size).to(dtype).to(device)
        self.scale = size[-1] ** -0.5
        everything = torch.ones(1, n, dtype=torch.bool, device=device)
        first = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.window = Window(shape.window // 2, everything, first, everything[:, :1])


def candidates(inputs: Inputs, *, with_theirs: bool) -> dict[str, Call]:
    """Return calls that yield (1, H, N, K): each engine that is meant for the device, and transformers."""
    device = inputs.gradient.device.type
    names = [name for name in engines(Window) if name not in (REFERENCE, ELSEWHERE.get(device))]
    found: dict[str, Call] = {name: engine_call(inputs, name) for name in names}
    if with_theirs:
        found[THEIRS] = transformers_call(inputs)
    return found


def engine_call(inputs: Inputs, name: str) -> Call:
    """Return a call of one of our engines."""
    return lambda: attend(*inputs.tensors, scale=inputs.scale, mask=inputs.window, engine=name)[0]


def transformers_call(inputs: Inputs) -> Call:
    """Return a call of transformers' module, whose projections hand out the given tensors.

    It also computes the row of the global token, which is little beside the rest.
    """
    shape, n = inputs.shape, inputs.tensors[0].shape[2]
    config = LongformerConfig(
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        attention_window=[shape.window],
        attention_probs_dropout_prob=0.0,
    )
    module: Any = LongformerSelfAttention(config, layer_id=0)
    query, key, value = inputs.tensors
    module.query, module.key, module.value = Given(query), Given(key), Given(value)
    module.query_global, module.key_global, module.value_global = Given(query), Given(key), Given(value)
    hidden = torch.zeros(1, n, shape.hidden, dtype=query.dtype, device=query.device)
    codes = hidden.new_zeros(1, n)
    codes[:, 0] = torch.finfo(hidden.dtype).max
    masks = {"attention_mask": codes, "is_index_masked": codes < 0, "is_index_global_attn": codes > 0}

    def call() -> Tensor:
        out = module(hidden, **masks, is_global_attn=True)[0]
        return out.unflatten(-1, (shape.heads, -1)).transpose(1, 2)

    return call


class Given(nn.Module):
    """A projection that yields as many rows of a tensor (1, H, N, K) as it is given, as (N, 1, D)."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def forward(self, hidden: Tensor) -> Tensor:
        """(M, 1, D) -> (M, 1, D), a new tensor: transformers scales the queries in place."""
        rows = self.x[0].transpose(0, 1).flatten(1)[: len(hidden), None]
        return rows.clone(memory_format=torch.contiguous_format)


def without_gradients(call: Call, inputs: Inputs) -> Callable[[], object]:
    """Return the forward pass alone."""

    def run() -> None:
        with torch.no_grad():
            call()

    return run


def with_gradients(call: Call, inputs: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    """Return forward and backward pass, which yield the gradients of query, key and value."""
    return lambda: torch.autograd.grad(call(), inputs.tensors, inputs.gradient)


def differences(inputs: Inputs, calls: Mapping[str, Call]) -> dict[str, dict[str, float]]:
    """Return how far the local rows of each candidate are from the dense float32 reference, for some heads."""
    some = slice(None), slice(COMPARED_HEADS), slice(1, None)
    inputs.gradient[:, :, 0] = 0  # the global row, which is not for the window to answer
    query, key, value = (x.detach().float()[:, :COMPARED_HEADS].requires_grad_() for x in inputs.tensors)
    out = attend(query, key, value, scale=inputs.scale, mask=inputs.window, engine=REFERENCE)[0]
    wanted = torch.autograd.grad(out, (query, key, value), inputs.gradient[:, :COMPARED_HEADS].float())
    found = {}
    for name, call in calls.items():
        mine = call()
        gradients = torch.autograd.grad(mine, inputs.tensors, inputs.gradient)
        apart = [largest(mine_x[:, :COMPARED_HEADS], x) for mine_x, x in zip(gradients, wanted, strict=True)]
        found[name] = {"outputs": largest(mine.detach()[some], out.detach()[:, :, 1:]), "gradients": max(apart)}
    return found
