"""One frozen body for several models in training: their documents share a pass, each with its own model's adapter.

Every model keeps its adapter's modules and its head. The body here has the same modules at its sites, so what a pass
computes is what each model by itself would, and the gradients of its documents reach its own parameters alone.

Shapes: b documents of one model, n their longest, B documents of all, N the longest of all, D model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.backbones import find_backbone
from foretoken.backbones.fast_maps import FastMaps
from foretoken.backbones.packing import HEAD_INPUTS, HeadInputs
from foretoken.backbones.pooling import ATTENTION, POOLING
from foretoken.errors import AdapterError, quoted
from foretoken.methods.base import OutputEdit
from foretoken.tuner.auxiliary import auxiliary_loss_of
from foretoken.tuner.bank.forms import add_update
from foretoken.tuner.bank.heads import States
from foretoken.tuner.dimensions import body_of, dimensions_of
from foretoken.tuner.forward.model_hooks import HOOKS, ModelHooks, Target, find_model_hooks
from foretoken.tuner.forward.plan import BASE
from foretoken.tuner.forward.sites import NAME
from foretoken.tuner.tuner import targets_by_path

BodyInputs = Mapping[str, Any]  # what a model gives its body
TRAINED = (NAME, "lora_A", "lora_B", "modules_to_save")  # parts of the paths of an adapter's parameters


class LoraUpdate(OutputEdit):
    """The update of peft's LoRA layer, ``W x + s B A dropout(x)``, where its linear map is another one."""

    def __init__(self, layer: LoraLayer, adapter: str) -> None:
        super().__init__()
        self.down, self.up = layer.lora_A[adapter], layer.lora_B[adapter]
        self.dropout, self.scale = layer.lora_dropout[adapter], layer.scaling[adapter]

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """(B, N, D_out) and (B, N, D_in) -> (B, N, D_out)."""
        weight: Any = self.down.weight
        update: Tensor = self.up(self.down(self.dropout(given.to(weight.dtype)))) * self.scale
        return output + update.to(output.dtype)


class JointBody:
    """The body that several models with adapters share while they are trained.

    From here on the frozen tensors of all models are those of the first one.

    Args:
        models: by name, models of one pretrained model, each with one adapter of its own.

    Raises:
        AdapterError: an adapter trains what documents of other models read as well, or is no adapter.
        BackboneError: the family is not supported.
        ConfigError: an adapter's methods act at one module in different ways.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        for name, model in models.items():
            check_joins(name, model)
        inner = {name: model.get_base_model() for name, model in models.items() if isinstance(model, PeftModel)}
        first: Any = next(iter(inner.values()))
        self.backbone = find_backbone(first)
        tensors = frozen_tensors(body_of(first))
        self.body: Any = body_like(body_of(first), tensors)
        for name, other in inner.items():
            check_same_tensors(name, body_of(other), tensors)
            share(body_of(other), tensors)
        self.hooks = ModelHooks(self.body, self.backbone, dimensions_of(self.body, self.body, self.backbone))
        HOOKS.set(self.body, self.hooks)
        self.hooks.handles.append(FastMaps(self.body))
        self.padding = getattr(first.config, "pad_token_id", None) or 0
        own = {name: f"model{number}" for number, name in enumerate(inner)}  # at the sites, which take no other names
        self.acting = {name: own[name] for name, model in inner.items() if self.attach(own[name], model)}
        self.reads_first_token = all(reads_first_token(model) for model in inner.values())

    def attach(self, name: str, model: nn.Module) -> bool:
        """Put the modules of a model's adapter at the sites; False where its head alone is trained."""
        paths = {module: path for path, module in self.body.named_modules()}
        targets: dict[str, tuple[Target, nn.Module]] = {}
        for _, sites in built_of(model):
            targets |= targets_by_path(sites, self.hooks, paths)
        for path, layer in lora_layers(body_of(model)).items():
            for adapter in layer.lora_A:
                add_update(targets, self.hooks, path, LoraUpdate(layer, adapter))
        for target, module in targets.values():
            self.hooks.attach(target, module, name)
        return bool(targets)

    def __call__(self, inputs: Mapping[str, BodyInputs]) -> dict[str, Tensor]:
        """Return each model's last hidden states (b, n, D), or (b, 1, D) where no head reads more than the first."""
        sizes = {name: tuple(given["input_ids"].shape) for name, given in inputs.items()}
        names = [self.acting.get(name, BASE) for name, (count, _) in sizes.items() for _ in range(count)]
        self.body.train()
        with self.naming(names), self.reading():
            states = self.body(**merged(inputs, padding=self.padding), return_dict=True)[0]
        found, begin = {}, 0
        for name, (count, length) in sizes.items():
            found[name] = states[begin : begin + count, :length]
            begin += count
        return found

    @contextmanager
    def naming(self, names: list[str]) -> Iterator[None]:
        """Let each document have its model's adapter for a while."""
        self.hooks.state.names = names
        try:
            yield
        finally:
            self.hooks.state.names = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Tell an encoder that packs what is read of it."""
        stack = self.backbone.stacks[0]
        packs = bool(self.backbone.first_token_heads and stack.end)
        encoder = stack.module(self.body).get_submodule(stack.end) if packs else None
        if encoder is not None:
            HEAD_INPUTS.set(encoder, HeadInputs(self.reads_first_token, padding=False, last_layer_only=True))
        try:
            yield
        finally:
            if encoder is not None:
                HEAD_INPUTS.pop(encoder)


class ApartBody:
    """The ``forward`` of a model's body, which yields states computed elsewhere while somebody computes them.

    Attributes:
        compute: what a pass of the body is asked of: its inputs -> (b, n, D); None for the body itself.
    """

    def __init__(self, model: PeftModel) -> None:
        inner: Any = model.get_base_model()
        self.model, self.hooks = inner, find_model_hooks(inner)
        self.body: Any = body_of(inner)
        self.backbone = find_backbone(inner)
        self.names = list(inspect.signature(type(self.body).forward).parameters)[1:]
        self.own = self.body.forward
        self.body.forward = self
        self.compute: Any = None

    @contextmanager
    def computed(self, compute: Any) -> Iterator[None]:
        """Ask for the body's states elsewhere for a while; the model's own sites rest meanwhile."""
        sites = [] if self.hooks is None else self.hooks.sites
        before, self.compute = [site._disable_adapters for site in sites], compute
        for site in sites:
            site._disable_adapters = True
        try:
            yield
        finally:
            self.compute = None
            for site, was in zip(sites, before, strict=True):
                site._disable_adapters = was

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the body does, or the states from elsewhere, pooled by the model's own pooler."""
        if self.compute is None:
            return self.own(*args, **kwargs)
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        states = self.compute({name: value for name, value in given.items() if isinstance(value, Tensor)})
        is_pooled = type(self.model).__name__.endswith(self.backbone.pooled_heads)
        pooler = self.body._modules.get("pooler") if is_pooled else None
        return States([states, None if pooler is None else pooler(states)])

    def auxiliary_loss(self) -> Tensor | None:
        """Return what the adapter adds to the loss, which it cannot do while it rests; None for nothing."""
        found = auxiliary_loss_of(self.model)
        return found if found is not None and found.requires_grad else None


def built_of(model: nn.Module) -> list[Any]:
    """Return config and modules of a model's adapters of foretoken's."""
    hooks = find_model_hooks(model)
    return [] if hooks is None else list(hooks.built.values())


def lora_layers(body: nn.Module) -> dict[str, LoraLayer]:
    """Return the LoRA layers of a body by their paths; those of its head act there."""
    return {path: m for path, m in body.named_modules() if isinstance(m, LoraLayer) and not is_of_head(path)}


def is_of_head(path: str) -> bool:
    """Tell whether a module of a body belongs to the model's head."""
    return not {"pooler", ATTENTION}.isdisjoint(path.split("."))


def reads_first_token(model: nn.Module) -> bool:
    """Tell whether a model's head reads the first token's last hidden state alone."""
    pooling = POOLING.get(body_of(model))
    ends = find_backbone(model).first_token_heads
    return bool(ends) and type(model).__name__.endswith(ends) and (pooling is None or pooling.pool == "first")


def check_joins(name: str, model: nn.Module) -> None:
    """Raise AdapterError for a model that cannot share a pass."""
    if not isinstance(model, PeftModel):
        raise AdapterError(f"{name}: the model is trained without an adapter, so no other one can share it")
    inner: Any = model.get_base_model()
    if inner.config.is_encoder_decoder or body_of(inner) is inner:
        raise AdapterError(f"{name}: encoders and decoders with a head can share a pass, got {type(inner).__name__}")
    pooling = POOLING.get(body_of(inner))
    if pooling is not None and pooling.pool == "prefix":
        raise AdapterError(f"{name}: the head reads the prefix (pool 'prefix'), which stays in the shared pass")
    for path, layer in lora_layers(body_of(inner)).items():
        if any(getattr(layer, "lora_variant", {}).values()) or not layer.lora_A:
            raise AdapterError(f"{name}: LoRA at {path} is of a kind that documents cannot have each for itself")
    for path, parameter in body_of(inner).named_parameters():
        if parameter.requires_grad and (is_of_head(path) or set(TRAINED[:3]) & set(path.split("."))):
            continue
        if parameter.requires_grad:
            raise AdapterError(f"{name}: trains {quoted(path)}, which the documents of other adapters read as well")


def frozen_tensors(body: nn.Module) -> dict[str, nn.Parameter]:
    """Return the pretrained parameters of a body without its head, by the names that they have without adapters."""
    found = {}
    for name, parameter in body.named_parameters(remove_duplicate=False):
        parts = [part for part in name.split(".") if part != "base_layer"]
        if set(parts).isdisjoint({*TRAINED, "original_module"}) and not is_of_head(name):
            found[".".join(parts)] = parameter
    return found


def check_same_tensors(name: str, body: nn.Module, tensors: Mapping[str, nn.Parameter]) -> None:
    """Raise AdapterError where a model was not made of the same pretrained one."""
    own = frozen_tensors(body)
    other = next((path for path in {**own, **tensors} if not is_same(own.get(path), tensors.get(path))), None)
    if other is not None:
        raise AdapterError(f"{name}: {other} is not that of the first model; all have to be of one pretrained model")


def is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Tell whether two tensors hold the same numbers."""
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def share(body: nn.Module, tensors: Mapping[str, nn.Parameter]) -> None:
    """Let a body have these parameters in the places of its own, which are the same numbers."""
    for name, _ in list(body.named_parameters(remove_duplicate=False)):
        short = ".".join(part for part in name.split(".") if part != "base_layer")
        if short in tensors:
            owner, _, last = name.rpartition(".")
            setattr(body.get_submodule(owner), last, tensors[short])


def body_like(body: Any, tensors: Mapping[str, nn.Parameter]) -> nn.Module:
    """Return a body as transformers makes it, with these parameters and without what belongs to a head."""
    with torch.device("meta"):
        made = type(body)(body.config)
    if "pooler" in made._modules:
        made.pooler = None
    share(made, tensors)
    for name, buffer in body.named_buffers():
        owner, _, last = name.rpartition(".")
        holder = None if is_of_head(name) else made.get_submodule(owner)
        if holder is not None and last in dict(holder.named_buffers(recurse=False)):
            setattr(holder, last, buffer)
    return made


def merged(inputs: Mapping[str, BodyInputs], *, padding: int) -> dict[str, Tensor]:
    """Return one batch (B, N) of several, padded at the end; masks and token types that one of them lacks are plain."""
    longest = max(given["input_ids"].shape[1] for given in inputs.values())
    found = {}
    for name in dict.fromkeys(name for given in inputs.values() for name in given):
        fill = padding if name == "input_ids" else 0
        parts = [given[name] if name in given else plain(name, given["input_ids"]) for given in inputs.values()]
        found[name] = torch.cat([F.pad(part, (0, longest - part.shape[1]), value=fill) for part in parts])
    return found


def plain(name: str, ids: Tensor) -> Tensor:
    """Return what a model computes with where it is given no such input, (b, n).

    Raises:
        AdapterError: it is none of which that is known.
    """
    if name not in ("attention_mask", "token_type_ids"):
        raise AdapterError(f"one of the models gives its body {name}, and another one does not")
    return torch.full_like(ids, int(name == "attention_mask"))
