"""`methods`: what every method costs beside the same model, on the same path, without an adapter.

On a Longformer with one long document, and on a RoBERTa with a batch of short ones beside peft's own prefix-tuning.
All candidates have the same frozen weights; the adapters are new, with their default options.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import peft
import torch
from torch import Tensor, nn

from foretoken.bench.machine import synchronise
from foretoken.bench.measure import Effort, Timing, compare, prefixed
from foretoken.bench.models import SHAPES, documents, longformer, predict, roberta, step
from foretoken.bench.names import NONE
from foretoken.bench.run.plan import Options, Part
from foretoken.errors import ConfigError, no_such
from foretoken.methods import METHODS
from foretoken.training.model.adapter import attach
from foretoken.tuner.fuse import fuse
from foretoken.tuner.speed import speed_up

PLAIN, PEFT = "transformers, no adapter", "peft's prefix-tuning"
LENGTHS_OF_PREFIX = (8, 20, 100)
FORWARD, STEP = "forward", "step"
GROUP = 5  # candidates timed together
ROOM = 100  # positions beyond the text's: peft's prefix-tuning moves the text by its prefix
Notify = Callable[[str], object]
Case = dict[str, Any]
Call = Callable[[], object]


def case(label: str, kind: str = "ours", *, only_forward: bool = False, **method: Any) -> Case:
    """Return a candidate as plain values: what kind it is, and its method's options."""
    return {"label": label, "kind": kind, "only_forward": only_forward, "method": method}


def with_prefix(name: str, *lengths: int) -> list[Case]:
    """Return a prefix method with several lengths."""
    return [case(f"{name}, P = {p}", name=name, num_virtual_tokens=p) for p in lengths]


def aot_cases(*tables: str, variants: Sequence[str] = ("fc", "kronecker")) -> list[Case]:
    """Return ahead-of-time P-tuning as it is trained, and as it is served from tables of these types."""
    return [
        *(case(f"aot-p-tuning, fused {t}", "fused", only_forward=True, name="aot-p-tuning", dtype=t) for t in tables),
        *(case(f"aot-p-tuning, {variant}", name="aot-p-tuning", variant=variant) for variant in variants),
    ]


def every_method() -> list[Case]:
    """Return all methods of the table but the stack, which is several of them."""
    several = {
        "prefix-propagation": with_prefix("prefix-propagation", *LENGTHS_OF_PREFIX),
        "prefix-tuning": with_prefix("prefix-tuning", *LENGTHS_OF_PREFIX),
        "selective-prefix-tuning": with_prefix("selective-prefix-tuning", 8, 20),
        "aot-p-tuning": aot_cases("float16"),
        "full": [case("full", "full", name="full")],
        "stack": [],
    }
    cases = [case(NONE, "none")]
    for name in METHODS:
        cases += several.get(name, [case(name, name=name)])
    return cases


def beside_peft() -> list[Case]:
    """Return what RoBERTa is measured with."""
    theirs = [case(f"{PEFT}, P = {p}", "peft", num_virtual_tokens=p) for p in (20, 100)]
    plain = [case(NONE, "none"), case(PLAIN, "transformers")]
    ours = [
        *with_prefix("prefix-tuning", 20, 100),
        *with_prefix("prefix-propagation", 20),
        *with_prefix("selective-prefix-tuning", 20),
        case("inducer-tuning", name="inducer-tuning"),
    ]
    return plain + theirs + ours + aot_cases("float16", variants=("fc",))


def wanted(cases: list[Case], names: Sequence[str]) -> list[Case]:
    """Return the cases of some methods and what they are beside; all without names."""
    return [one for one in cases if not names or one["method"].get("name") in names or one["kind"] == "none"]


def plan(options: Options) -> list[Part]:
    """Return one part per model and size.

    Raises:
        ConfigError: an unknown method.
    """
    for name in options.method:
        if name not in METHODS:
            raise ConfigError(no_such("method", name, METHODS))
    sizes = [
        ("longformer", every_method(), 4096, 1),
        ("roberta", beside_peft(), 128, 64),
        ("roberta", beside_peft(), 512, 8),
    ]
    return [
        part_of("methods", options, dtype, allocator, family, chosen, n=n, batch=batch)
        for dtype in options.dtypes_or("float32")
        for allocator in options.allocators_or("tuned")
        for family, cases, n, batch in sizes
        if len(chosen := wanted(cases, options.method)) > 1
    ]


def part_of(
    benchmark: str,
    options: Options,
    dtype: str,
    allocator: str,
    family: str,
    cases: list[Case],
    *,
    n: int,
    batch: int,
    rounds: int = 5,
    seconds: float = 16,
) -> Part:
    """Return a part; a quick run has an eighth of the tokens, or of the batch."""
    if options.quick:
        n, batch = (n // 8, batch) if batch == 1 else (n, max(1, batch // 8))
    n = options.size(n)
    settings = options.settings(
        family=family,
        n=n,
        batch=batch,
        layers=options.layers or 2,
        cases=cases,
        effort=options.effort(rounds=rounds, seconds=seconds),
    )
    title = f"{family}, n {n}, batch {batch}, {settings['layers']} layers, {dtype}, {allocator} allocator"
    return Part(benchmark, title, dtype, allocator, settings)


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Time forward passes and steps of every candidate in turn."""
    settings = part.settings
    make = longformer if settings["family"] == "longformer" else roberta
    shape, device = SHAPES[settings["shape"]], settings["device"]
    base = make(
        shape,
        layers=settings["layers"],
        max_length=settings["n"] + ROOM,
        dtype=getattr(torch, part.dtype),
        device=device,
    )
    batch = documents(shape, [settings["n"]] * settings["batch"], device)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="foretoken-bench-")))
        models, skipped = all_models(base, settings["cases"], batch, folder, notify)
        timings: dict[str, dict[str, Any]] = {}
        for mode, run in ((FORWARD, predict), (STEP, step)):
            calls = {}
            for label, (model, only_forward) in models.items():
                model.train(mode == STEP)
                if mode == FORWARD or not only_forward:
                    calls[label] = partial(run, model, batch)
            timings[mode] = beside_none(calls, settings, prefixed(notify, mode))
    return {"timings": timings, "skipped": skipped}


def beside_none(calls: Mapping[str, Call], settings: Mapping[str, Any], notify: Notify) -> dict[str, dict[str, Any]]:
    """Time a few candidates at a time, each with the times of no adapter beside it; that comes first."""
    timings: dict[str, dict[str, Any]] = {NONE: {}}
    alone = Timing()
    for group in groups(calls):
        found = compare(
            group,
            effort=Effort(**settings["effort"]),
            synchronise=partial(synchronise, settings["device"]),
            notify=notify,
        )
        unadapted = found.pop(NONE)
        alone.samples += unadapted.samples
        beside = unadapted.as_dict()["samples"]
        timings |= {label: timing.as_dict() | {"beside": beside} for label, timing in found.items()}
    timings[NONE] = alone.as_dict() | {"beside": alone.as_dict()["samples"]}
    return timings


def groups(calls: Mapping[str, Call]) -> list[dict[str, Call]]:
    """Return a few candidates at a time, each time with no adapter among them: the machine's pace changes.

    >>> [list(group) for group in groups(dict.fromkeys([NONE, "a", "b", "c", "d", "e", "f"], print))]
    [['no adapter', 'a', 'b', 'c', 'd', 'e'], ['no adapter', 'f']]
    """
    others = [label for label in calls if label != NONE]
    return [
        {label: calls[label] for label in (NONE, *others[start : start + GROUP])}
        for start in range(0, len(others), GROUP)
    ]


def all_models(
    base: Any, cases: list[Case], batch: dict[str, Tensor], folder: Path, notify: Notify
) -> tuple[dict[str, tuple[nn.Module, bool]], dict[str, str]]:
    """Build every candidate and try each once; what does not work here is named with the reason."""
    models: dict[str, tuple[nn.Module, bool]] = {}
    skipped: dict[str, str] = {}
    for number, one in enumerate(cases):
        notify(f"building {one['label']}")
        try:
            model = build(base, one, folder / str(number))
            predict(model, batch)
        except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            skipped[one["label"]] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            continue
        models[one["label"]] = model, one["only_forward"]
    return models, skipped


def build(base: Any, one: Case, folder: Path) -> Any:
    """Return a candidate's model. The word embeddings, which nobody trains here, are shared."""
    kind, method = one["kind"], dict(one["method"])
    words = base.get_input_embeddings().weight
    model = copy.deepcopy(base, {} if kind == "full" else {id(words): words})
    if kind in ("none", "transformers"):
        return with_gradient_at_entry(speed_up(model) if kind == "none" else model)
    if kind == "peft":
        return peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="SEQ_CLS", **method))
    if kind == "full":
        return attach(model.requires_grad_(True), method)
    if kind == "fused":
        dtype = getattr(torch, method.pop("dtype"))
        return fuse(attach(model, method), folder, dtype=dtype)
    return attach(model, method)


def with_gradient_at_entry(model: Any) -> Any:
    """Let a frozen model's step go back to the embeddings, as the step of an adapter on the first layer does."""
    model.classifier.requires_grad_(True)
    model.base_model.embeddings.register_forward_hook(lambda module, args, out: out.detach().requires_grad_())
    return model
