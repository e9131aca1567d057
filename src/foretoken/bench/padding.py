"""`padding`: training steps of prefix-propagation over documents of many lengths.

transformers pads a batch to its longest document, and that to a multiple of the window; foretoken packs it. The loss is
over all tokens, so that every layer is computed whole on both sides, however many layers there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretoken.bench.candidates import Model, failure, kept, largest
from foretoken.bench.machine import synchronise
from foretoken.bench.measure import Effort, compare, prefixed
from foretoken.bench.models import PREFIX_LENGTH, SHAPES, TransformersPrefix, documents, longformer, prefixes, step
from foretoken.bench.models import propagated as with_prefix
from foretoken.bench.names import OURS, THEIRS
from foretoken.bench.run.plan import Options, Part, read_lengths
from foretoken.training.tokens.batches import BucketSampler, ShuffleSampler

MEDIAN, SIGMA, LONGEST, COUNT, SEED = 700, 0.8, 4096, 4000, 0
ORDERS = {"random": ShuffleSampler, "bucketed": BucketSampler}
Notify = Callable[[str], object]


def plan(options: Options) -> list[Part]:
    """Return one part per order of the documents."""
    lengths = drawn_lengths(options) if options.lengths is None else read_lengths(options.lengths)
    longest = options.size(LONGEST // 4 if options.quick else LONGEST)
    lengths = [min(length, longest) for length in lengths]
    size = options.batch_size
    count = 2 if options.quick else 3
    return [
        Part(
            "padding",
            f"{order} batches of {size}, {dtype}, {allocator} allocator",
            dtype,
            allocator,
            options.settings(
                order=order,
                layers=options.layers or 2,
                batches=batches(lengths, order, size, count),
                longest=longest,
                source=str(options.lengths or f"lognormal, median {MEDIAN}, sigma {SIGMA}"),
                effort=options.effort(rounds=2, seconds=30),
            ),
        )
        for dtype in options.dtypes_or("float32")
        for allocator in options.allocators_or("tuned")
        for order in ORDERS
    ]


def drawn_lengths(options: Options) -> list[int]:
    """Return lengths of documents as they are found: lognormal, cut at the longest that the model reads."""
    median = options.size(MEDIAN // 4 if options.quick else MEDIAN)
    drawn = np.random.default_rng(SEED).lognormal(math.log(median), SIGMA, COUNT)
    return [int(length) + 1 for length in drawn]


def batches(lengths: Sequence[int], order: str, size: int, count: int) -> list[list[int]]:
    """Return the first batches that training would see, as lengths of their documents.

    >>> batches([5, 900], "bucketed", 2, 1)
    [[5, 900]]
    """
    indices = iter(ORDERS[order](lengths, batch_size=size, seed=SEED))
    found = (list(islice(indices, size)) for _ in range(count))
    return [[lengths[index] for index in batch] for batch in found if batch]


def padded_tokens(lengths: Sequence[int], window: int) -> int:
    """Return how many rows transformers computes: every document as long as the longest, and whole windows.

    >>> padded_tokens([100, 700], window=512)
    2048
    """
    longest = max(lengths) + PREFIX_LENGTH
    return len(lengths) * math.ceil(longest / window) * window


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Time the batches one after another, both sides in turn on each."""
    settings = part.settings
    shape, device = SHAPES[settings["shape"]], settings["device"]
    options = {"layers": settings["layers"], "dtype": getattr(torch, part.dtype), "device": device, "tokens": True}
    longest = max(map(max, settings["batches"]))
    ours = with_prefix(longformer(shape, max_length=longest, **options), tokens=True)
    theirs = TransformersPrefix(longformer(shape, max_length=longest, **options), prefixes(ours)).train()
    models, found = {THEIRS: theirs, OURS: ours}, []
    for number, lengths in enumerate(settings["batches"]):
        batch = documents(shape, lengths, device, seed=number)
        outputs: dict[str, Tensor] = {}
        timings = compare(
            {name: kept(outputs, name, Model(model, {}), step, batch) for name, model in models.items()},
            effort=Effort(**settings["effort"], warm_up=int(number == 0)),
            synchronise=partial(synchronise, device),
            notify=prefixed(notify, f"batch {number + 1}"),
        )
        found.append(
            {
                "lengths": lengths,
                "real": sum(lengths),
                "padded": padded_tokens(lengths, shape.window),
                "outputs": largest(*(outputs[name][batch["attention_mask"].bool()] for name in (OURS, THEIRS))),
                "timings": {name: timing.as_dict() for name, timing in timings.items()},
            }
        )
    apart = max(batch["outputs"] for batch in found)
    differences = {OURS: {"outputs": apart}}
    return {
        "batches": found,
        "differences": differences,
        "failed": failure(differences) if part.dtype == "float32" else None,
    }
