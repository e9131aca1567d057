"""The candidates of a comparison on Longformer: models of the same weights, ours and transformers' own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretoken.attention import Packed, engines
from foretoken.attention.choose import ENGINE_VARIABLE, PACKING_VARIABLE
from foretoken.bench.models import (
    SHAPES,
    TransformersPrefix,
    environment,
    longformer,
    prefixes,
    propagated,
)
from foretoken.bench.names import CHECKPOINTED, OURS, THEIRS, UNPACKED
from foretoken.bench.run.plan import Part
from foretoken.training.trainer.memory import give_back_between_layers
from foretoken.tuner.speed import speed_up

LIMIT = 1e-4  # float32: more apart than this is a defect


class Model:
    """A model, and the variables of the environment that choose its path."""

    def __init__(self, module: nn.Module, variables: Mapping[str, str]) -> None:
        self.module = module
        self.variables = variables


class Models:
    """The candidates' models, all of the same weights, each made when it is first asked for."""

    def __init__(self, part: Part) -> None:
        settings = part.settings
        self.base = longformer(
            SHAPES[settings["shape"]],
            layers=settings["layers"],
            max_length=settings["n"],
            dtype=getattr(torch, part.dtype),
            device=settings["device"],
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.adapted = propagated(copy.deepcopy(self.base))
        self.made: dict[tuple[str, str], Model] = {}

    def of(self, name: str, mode: str) -> Model:
        """Return a candidate's model for a mode."""
        if (name, mode) not in self.made:
            self.made[name, mode] = self.make(name, mode)
        return self.made[name, mode]

    def make(self, name: str, mode: str) -> Model:
        """Build a candidate's model."""
        base = copy.deepcopy(self.base)
        if name == THEIRS:
            return Model(base if mode == "forward" else TransformersPrefix(base, prefixes(self.adapted)).train(), {})
        variables = variables_of(name)
        with environment(variables):
            if mode == "forward":
                return Model(speed_up(base), variables)
            adapted = self.same_prefix(propagated(base))
            if name == CHECKPOINTED:
                adapted.gradient_checkpointing_enable({"use_reentrant": False})
                give_back_between_layers(adapted)
            return Model(adapted, variables)

    def same_prefix(self, adapted: Any) -> Any:
        """Give an adapter the one prefix that all candidates have."""
        with torch.no_grad():
            for mine, common in zip(prefixes(adapted), prefixes(self.adapted), strict=True):
                mine.copy_(common)
        return adapted

    def differences(self, outputs: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """Return how far our logits, and gradients, are from transformers' after the last calls."""
        found: dict[str, dict[str, float]] = {}
        for mode, logits in outputs.items():
            for name in [name for name in logits if name != THEIRS and THEIRS in logits]:
                found[f"{name}, {mode}"] = {"outputs": largest(logits[name], logits[THEIRS])}
                if mode == "step":
                    mine, theirs = (gradients(self.of(who, mode).module) for who in (name, THEIRS))
                    found[f"{name}, {mode}"] |= {
                        "gradients": max(largest(mine[key], theirs[key]) for key in theirs),
                        "gradients_relative": max(relative(mine[key], theirs[key]) for key in theirs),
                    }
        return found


def variables_of(name: str) -> dict[str, str]:
    """Return what the environment has to say for a candidate of ours; only some engines take a packed batch.

    >>> variables_of("foretoken, gather-sdpa")
    {'FORETOKEN_PACKING': '0', 'FORETOKEN_ATTENTION_ENGINE': 'gather-sdpa'}
    """
    if name == UNPACKED:
        return {PACKING_VARIABLE: "0"}
    if name == CHECKPOINTED:
        return {PACKING_VARIABLE: "1"}
    engine = name.removeprefix(OURS).removeprefix(", ")
    if not engine:
        return {PACKING_VARIABLE: "1"}
    return {PACKING_VARIABLE: str(int(engine in engines(Packed))), ENGINE_VARIABLE: engine}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of the prefix and of the head, by names that both sides have."""
    prefix = model.prefix if isinstance(model, TransformersPrefix) else prefixes(model)
    found = {"prefix": torch.stack([p.grad for p in prefix if p.grad is not None])}
    for name, parameter in model.named_parameters():
        if "classifier" in name and parameter.grad is not None:
            found[name.partition("classifier.")[2].removeprefix("modules_to_save.default.")] = parameter.grad
    return found


def largest(mine: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of two tensors."""
    return (mine.float() - theirs.float()).abs().max().item()


def relative(mine: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the second one's largest element."""
    return largest(mine, theirs) / max(theirs.float().abs().max().item(), 1e-30)


def failure(differences: Mapping[str, Mapping[str, float]]) -> str | None:
    """Return what is further from transformers than rounding explains."""
    far = [
        f"{name}: {kind} differ by {value:.1e}"
        for name, kinds in differences.items()
        for kind, value in kinds.items()
        if kind != "gradients_relative" and not value <= LIMIT
    ]
    return f"{'; '.join(far)}; at most {LIMIT:.0e} is rounding" if far else None


def kept(
    outputs: dict[str, Tensor], name: str, model: Model, run: Callable[..., Tensor], batch: Any
) -> Callable[[], None]:
    """Return a call that leaves its logits in ``outputs``."""

    def call() -> None:
        with environment(model.variables):
            outputs[name] = run(model.module, batch)

    return call
