"""What every method costs beside the same model, on the same path, without an adapter.

On a Longformer with one long document, and on a RoBERTa with a batch of short ones beside peft's own prefix-tuning.
All candidates have the same frozen weights; the adapters are new, with their default options.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import peft
import torch

from benchmarks.suite.measure import Sample, compare, summary
from benchmarks.suite.models import NONE, SHAPES, Batch, documents, model, predict, step
from benchmarks.suite.runner import Options, Part
from foretoken.methods.table import METHODS
from foretoken.training.model.adapter import attach
from foretoken.tuner.fuse import fuse
from foretoken.tuner.speed import speed_up

FORWARD, STEP = "forward", "step"
GROUP = 5  # candidates timed together
ROOM = 100  # positions beyond the text's: peft's prefix-tuning moves the text by its prefix
SIZES = (("longformer", 4096, 1), ("roberta", 128, 64), ("roberta", 512, 8))
Case = dict[str, Any]


def case(label: str, kind: str = "ours", **method: Any) -> Case:
    """Return a candidate as plain values: what kind it is, and its method's options."""
    return {"label": label, "kind": kind, "method": method}


def with_prefix(name: str, *lengths: int) -> list[Case]:
    """Return a prefix method with several lengths."""
    return [case(f"{name}, P = {p}", name=name, num_virtual_tokens=p) for p in lengths]


def every_method() -> list[Case]:
    """Return all methods of the table but the stack, which is several of them."""
    several = {
        "prefix-propagation": with_prefix("prefix-propagation", 8, 20, 100),
        "prefix-tuning": with_prefix("prefix-tuning", 8, 20, 100),
        "selective-prefix-tuning": with_prefix("selective-prefix-tuning", 8, 20),
        "aot-p-tuning": aot_cases("fc", "kronecker"),
        "full": [case("full", "full", name="full")],
        "stack": [],
    }
    return [case(NONE, "none"), *(one for name in METHODS for one in several.get(name, [case(name, name=name)]))]


def aot_cases(*variants: str) -> list[Case]:
    """Return ahead-of-time P-tuning as it is served from a fused table, and as it is trained."""
    fused = case("aot-p-tuning, fused float16", "fused", name="aot-p-tuning", dtype="float16")
    return [fused, *(case(f"aot-p-tuning, {variant}", name="aot-p-tuning", variant=variant) for variant in variants)]


def beside_peft() -> list[Case]:
    """Return what RoBERTa is measured with."""
    theirs = [case(f"peft's prefix-tuning, P = {p}", "peft", num_virtual_tokens=p) for p in (20, 100)]
    ours = [*with_prefix("prefix-tuning", 20, 100), *with_prefix("prefix-propagation", 20)]
    ours += [*with_prefix("selective-prefix-tuning", 20), case("inducer-tuning", name="inducer-tuning")]
    return [case(NONE, "none"), case("transformers, no adapter", "transformers"), *theirs, *ours, *aot_cases("fc")]


def plan(options: Options) -> list[Part]:
    """Return one part per model and size."""
    parts = []
    for dtype in options.dtype or ["float32"]:
        for family, tokens, documents_ in SIZES[: options.pick(1, 3)]:
            n, layers = options.size(tokens), options.layers or 2
            settings = options.settings(
                family=family,
                n=n,
                batch=documents_,
                layers=layers,
                cases=every_method() if family == "longformer" else beside_peft(),
                modes=[FORWARD, STEP],
                dtype=dtype,
                seconds=16,
            )
            parts.append(Part(f"{family}, n {n}, batch {documents_}, {layers} layers, {dtype}", settings))
    return parts


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Time forward passes and steps of every candidate in turn."""
    base, batch = base_and_batch(settings)
    with TemporaryDirectory(prefix="foretoken-bench-") as folder:
        models, skipped = all_models(base, settings["cases"], batch, Path(folder))
        timings = {}
        for mode, run in ((FORWARD, predict), (STEP, step)):
            calls = {
                one["label"]: partial(run, models[one["label"]].train(mode == STEP), batch)
                for one in settings["cases"]
                if one["label"] in models and (mode == FORWARD or one["kind"] != "fused")
            }
            timings[mode] = beside_none(calls, settings["effort"])
    return {"timings": timings, "skipped": skipped}


def base_and_batch(settings: Mapping[str, Any]) -> tuple[Any, Batch]:
    """Return the frozen model, with room for a prefix, and documents of the same length."""
    shape = SHAPES[settings["shape"]]
    sizes: dict[str, Any] = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
    sizes |= {name: settings[name] for name in ("layers", "dtype", "device")}
    base = model(settings["family"], shape, max_length=settings["n"] + ROOM, **sizes)
    return base, documents(shape, [settings["n"]] * settings["batch"], settings["device"])


def beside_none(calls: Mapping[str, Callable[[], object]], effort: Mapping[str, Any]) -> dict[str, Any]:
    """Time a few candidates at a time, each with the times of no adapter beside it: the machine's pace changes."""
    timings: dict[str, dict[str, Any]] = {NONE: {}}
    alone: list[list[float]] = []
    for group in groups(list(calls)):
        found = compare({label: calls[label] for label in group}, **effort)
        beside = found.pop(NONE)["samples"]
        alone += beside
        timings |= {label: timing | {"beside": beside} for label, timing in found.items()}
    timings[NONE] = summary([Sample(*one) for one in alone]) | {"beside": alone}
    return timings


def groups(labels: Sequence[str]) -> list[list[str]]:
    """Return a few candidates at a time, each time with no adapter among them."""
    others = [label for label in labels if label != NONE]
    return [[NONE, *others[start : start + GROUP]] for start in range(0, len(others), GROUP)]


def all_models(
    base: Any, cases: list[Case], batch: Batch, folder: Path
) -> tuple[dict[str, torch.nn.Module], dict[str, str]]:
    """Build every candidate and try each once; what does not work here is named with the reason."""
    models: dict[str, torch.nn.Module] = {}
    skipped: dict[str, str] = {}
    for number, one in enumerate(cases):
        try:
            found = build(base, one, folder / str(number))
            predict(found, batch)
            models[one["label"]] = found
        except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            skipped[one["label"]] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return models, skipped


def build(base: Any, one: Case, folder: Path) -> Any:
    """Return a candidate's model. The word embeddings, which nobody trains here, are shared."""
    kind, method = one["kind"], dict(one["method"])
    words = base.get_input_embeddings().weight
    found = copy.deepcopy(base, {} if kind == "full" else {id(words): words})
    if kind in ("none", "transformers"):
        return with_gradient_at_entry(speed_up(found) if kind == "none" else found)
    if kind == "peft":
        return peft.get_peft_model(found, peft.PrefixTuningConfig(task_type="SEQ_CLS", **method))
    if kind == "full":
        return attach(found.requires_grad_(True), method)
    if kind == "fused":
        dtype = getattr(torch, method.pop("dtype"))
        return fuse(attach(found, method), folder, dtype=dtype)
    return attach(found, method)


def with_gradient_at_entry(model: Any) -> Any:
    """Let a frozen model's step go back to the embeddings, as the step of an adapter on the first layer does."""
    model.classifier.requires_grad_(True)
    model.base_model.embeddings.register_forward_hook(lambda module, args, out: out.detach().requires_grad_())
    return model
