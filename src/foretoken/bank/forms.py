"""Adapters of one form: one set of modules at the model's sites, and a row of numbers for each adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import LoraConfig, PeftConfig
from peft.utils.other import get_pattern_key
from torch import Tensor, nn

from foretoken.bank.per_document import row_module
from foretoken.bank.rows import RowStore, layout_of
from foretoken.bank.saved import State
from foretoken.errors import AdapterError, BackboneError, ConfigError, cut
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.require import require_addition
from foretoken.methods.sites import AttentionEdit, LayerEntry, OutputEdit, OutputSequence, Sites
from foretoken.tuner.checks import check_names, check_position_free
from foretoken.tuner.forward.sites import NAME
from foretoken.tuner.limits import PLAIN, check_fits
from foretoken.tuner.model_hooks import ModelHooks, Target
from foretoken.tuner.tuner import on_device, targets_by_path

DOWN, UP = "lora_A.weight", "lora_B.weight"


@dataclass(frozen=True)
class LoraMaps:
    """The low-rank updates of an adapter, by the paths of linear maps in the body.

    Attributes:
        ranks: their ranks.
        scales: what their products are multiplied by.
    """

    ranks: Mapping[str, int]
    scales: Mapping[str, float]


class LoraProduct(OutputEdit):
    """A LoRA update, ``W x + B A x``, its factor in B: A (r, D_in), B (D_out, r)."""

    def __init__(self, given: int, output: int, *, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, given))
        self.up = nn.Parameter(torch.empty(output, rank))

    def forward(self, output: Tensor, given: Tensor) -> Tensor:
        """(B, N, D_out) and (B, N, D_in) -> (B, N, D_out)."""
        return output + given.to(output.dtype) @ self.down.T @ self.up.T


class AdapterForm:
    """Adapters that differ in their parameters alone, or by a table in a file.

    Args:
        name: what stands for them at the sites.
        hooks: of the model.
        config: of the first one; None for LoRA alone.
        lora: its low-rank updates.
        dimensions: of the backbone.
        dtype: of the numbers that are kept.
    """

    def __init__(
        self,
        name: str,
        hooks: ModelHooks,
        config: ForetokenConfig | None,
        lora: LoraMaps,
        *,
        dimensions: Dimensions,
        dtype: torch.dtype,
    ) -> None:
        self.name = name
        self.hooks = hooks
        self.dimensions = dimensions
        self.has_own_modules = config is not None and not config.differs_in_parameters_alone()
        self.targets = self.find_targets(config, lora)
        shapes: dict[str, tuple[int, ...]] = {}
        self.names: list[dict[str, str]] = []  # of each target: by the parameter's name, the one in the file
        for path, (_, module) in self.targets.items():
            names = {
                inner: file_name(path, inner, is_lora=path in lora.ranks) for inner, _ in module.named_parameters()
            }
            shapes |= {names[inner]: tuple(parameter.shape) for inner, parameter in module.named_parameters()}
            self.names.append(names)
        place = next(hooks.body.parameters())
        self.store = RowStore(layout_of(shapes), dtype=dtype, device=place.device)
        self.own: list[dict[int, nn.Module]] = [{} for _ in self.targets]
        self.attach()

    def find_targets(self, config: ForetokenConfig | None, lora: LoraMaps) -> dict[str, tuple[Target, nn.Module]]:
        """Return the modules by the paths of those that carry them."""
        body, hooks = self.hooks.body, self.hooks
        with torch.device("meta"):
            sites = Sites() if config is None or self.has_own_modules else config.sites(self.dimensions)
        if config is not None and self.has_own_modules:
            sites = config.sites(self.dimensions)
        check_position_free(sites, hooks.backbone.stacks_of(body), hooks.dimensions)
        targets = targets_by_path(sites, hooks, {module: path for path, module in body.named_modules()})
        for path, rank in lora.ranks.items():
            given, output = widths(body.get_submodule(path))
            with torch.device("meta"):
                update = LoraProduct(given, output, rank=rank)
            add_update(targets, hooks, path, update)
        return targets

    @property
    def has_prefix(self) -> bool:
        """Whether a prefix stands before the text."""
        return any(isinstance(module, LayerEntry) and module.prefix_length for _, module in self.targets.values())

    def attach(self) -> None:
        """Put modules that stand for all adapters of the form at the sites."""
        attentions, shapes = self.hooks.backbone.attention_modules(self.hooks.body), self.hooks.dimensions.attentions
        for (target, module), names, own in zip(self.targets.values(), self.names, self.own, strict=True):
            layout = {inner: self.store.layout[name] for inner, name in names.items()}
            query = None
            if isinstance(module, AttentionEdit):
                shape = shapes[next(i for i, one in enumerate(attentions) if one is target.holder)]
                device = "cpu" if self.has_own_modules else "meta"
                query = torch.zeros(1, shape.num_heads, 1, shape.head_dim, device=device)
            standing = row_module(module, layout, own if self.has_own_modules else None, query=query)
            self.hooks.attach(target, standing.train(target.holder.training), self.name)

    def add(self, config: ForetokenConfig | None, lora: LoraMaps, state: Mapping[str, Tensor]) -> int:
        """Take an adapter's tensors, and return its number."""
        tensors = Scaled(state, lora)
        made = self.own_modules(config, lora, tensors) if config is not None and self.has_own_modules else []
        slot = self.store.add(tensors)
        for own, module in zip(self.own, made, strict=False):
            own[slot] = module
        return slot

    def own_modules(self, config: ForetokenConfig, lora: LoraMaps, tensors: Mapping[str, Tensor]) -> list[nn.Module]:
        """Return an adapter's own modules, in the order of the targets."""
        found = []
        for (target, module), names in zip(self.find_targets(config, lora).values(), self.names, strict=True):
            made = on_device(module.to_empty(device="cpu") if is_meta(module) else module, target.holder)
            with torch.no_grad():
                for inner, parameter in made.named_parameters():
                    parameter.copy_(tensors[names[inner]])
            found.append(made.requires_grad_(False).eval())
        return found

    def remove(self, slot: int) -> None:
        """Forget an adapter."""
        self.store.remove(slot)
        for own in self.own:
            own.pop(slot, None)


class Scaled(Mapping[str, Tensor]):
    """Tensors of an adapter, with the factor of each LoRA in its second matrix."""

    def __init__(self, state: Mapping[str, Tensor], lora: LoraMaps) -> None:
        self.state = state
        self.lora = lora

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.state[name]
        scale = self.lora.scales.get(name.removesuffix(f".{UP}")) if name.endswith(UP) else None
        return tensor if scale is None else tensor * scale

    def __iter__(self) -> Any:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)


def add_update(targets: dict[str, tuple[Target, nn.Module]], hooks: ModelHooks, path: str, update: OutputEdit) -> None:
    """Let a low-rank update act at a linear map of the body, beside what a stack's other methods do there.

    Raises:
        ConfigError: they edit another output.
    """
    found = hooks.body.get_submodule(path)
    if path not in targets:
        targets[path] = Target(found, hooks.stack_of(found), found), update
        return
    target, own = targets[path]
    if target.output is not found or not isinstance(own, OutputEdit) or target.width not in (None, widths(found)[1]):
        raise ConfigError(f"the adapter's LoRA and another of its methods act at {path} in different ways")
    targets[path] = target, OutputSequence([own, update])


def is_meta(module: nn.Module) -> bool:
    """Tell whether a module has shapes and no numbers."""
    return any(parameter.is_meta for parameter in module.parameters())


def widths(module: nn.Module) -> tuple[int, int]:
    """Return the widths of a linear map's input and output; transformers' Conv1D holds its weight the other way."""
    sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if isinstance(sizes[0], int) and isinstance(sizes[1], int):  # also of one whose weight is no parameter: in 8 bits
        return sizes[0], sizes[1]
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2 or isinstance(module, nn.Embedding):
        raise BackboneError(f"LoRA acts at a {type(module).__name__}; a bank of adapters takes it at linear maps alone")
    return weight.shape[0], weight.shape[1]


def file_name(path: str, inner: str, *, is_lora: bool) -> str:
    """Return the canonical name of a parameter of the module that a path carries."""
    if not is_lora:
        return f"{path}.{NAME}.{inner}"
    lora = {"down": DOWN, "up": UP, "parts.1.down": DOWN, "parts.1.up": UP}
    return f"{path}.{lora[inner]}" if inner in lora else f"{path}.{NAME}.{inner.removeprefix('parts.0.')}"


def form_key(config: ForetokenConfig | None, lora: LoraMaps, dimensions: Dimensions) -> str:
    """Return what adapters of one form have in common."""
    options = None if config is None else [config.form_options(), config.differs_in_parameters_alone()]
    return json.dumps([options, sorted(lora.ranks.items()), dimensions.heads], sort_keys=True, default=str)


def lora_maps(lora: LoraConfig | None, state: State) -> LoraMaps:
    """Return the low-rank updates that an adapter's tensors are.

    Raises:
        AdapterError: it is a kind of LoRA that adds more than products of two matrices.
    """
    if lora is None:
        return LoraMaps({}, {})
    require_addition(lora)
    if lora.use_dora or getattr(lora, "lora_bias", False):
        raise AdapterError("a bank of adapters takes LoRA without use_dora and lora_bias; merge this one into a model")
    patterns = {**(lora.alpha_pattern or {}), **(lora.rank_pattern or {})}
    if any(PLAIN.fullmatch(pattern) is None for pattern in patterns):
        raise AdapterError("alpha_pattern and rank_pattern have regular expressions; name the modules instead")
    ranks = {
        name.removesuffix(f".{DOWN}"): shape[0] for name, shape in state.shapes.items() if name.endswith(f".{DOWN}")
    }
    scales = {}
    for path, rank in ranks.items():
        alphas = lora.alpha_pattern or {}
        alpha = alphas.get(get_pattern_key(list(alphas), path), lora.lora_alpha)
        scales[path] = alpha / (rank**0.5 if lora.use_rslora else rank)
    return LoraMaps(ranks, scales)


def parts_of(config: PeftConfig) -> tuple[ForetokenConfig | None, LoraConfig | None]:
    """Return foretoken's part of an adapter, and its LoRA.

    Raises:
        AdapterError: it is another method of peft's.
    """
    if isinstance(config, LoraConfig):
        return None, config
    if not isinstance(config, ForetokenConfig):
        raise AdapterError(f"a bank takes foretoken's methods and LoRA; got {type(config).__name__}")
    return config, config.lora_member()


def plain_adapter(
    config: ForetokenConfig, state: State, dimensions: Dimensions, paths: Mapping[nn.Module, str], hooks: ModelHooks
) -> tuple[ForetokenConfig, dict[str, Tensor] | None]:
    """Return an adapter without modules that read parameters of others: projected prefixes become plain ones.

    Returns:
        Its config and its tensors; None for these where nothing was to do.
    """
    with torch.device("meta"):
        probe = config.with_plain_modules(config.sites(dimensions)) if config.differs_in_parameters_alone() else config
    if probe.form_options() == config.form_options():
        return config, None
    sites = config.sites(dimensions)
    found: dict[str, Tensor] = {}
    for path, (_, module) in targets_by_path(sites, hooks, paths).items():
        with torch.no_grad():
            for inner, parameter in module.named_parameters():
                name = f"{path}.{NAME}.{inner}"
                check_shape(name, state.shapes.get(name), tuple(parameter.shape))
                parameter.copy_(state[name])
    with torch.no_grad():
        made = config.with_plain_modules(sites)
    for path, (_, module) in targets_by_path(sites, hooks, paths).items():
        found |= {f"{path}.{NAME}.{inner}": value.detach() for inner, value in module.named_parameters()}
    return made, found


def check_tensors(form: AdapterForm, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise AdapterError where an adapter's tensors are not those that its config asks for; none is read for that."""
    expected = {name: shape for name, (_, shape) in form.store.layout.items()}
    ours = {name for name in shapes if f".{NAME}." in name or ".lora_" in name}
    check_names(expected.keys() - shapes.keys(), ours - expected.keys(), len(expected))
    for name, shape in expected.items():
        check_shape(name, shapes[name], shape)


def check_shape(name: str, given: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    """Raise AdapterError for a tensor of another shape."""
    if given is None:
        check_names({name}, set(), 1)
    if given != expected:
        raise AdapterError(
            f"{cut(name, 150)} is {given} in the adapter file but {expected} by its config; "
            "the two belong to different adapters"
        )


def check_new_form(config: ForetokenConfig, dimensions: Dimensions, model: nn.Module) -> None:
    """Raise ConfigError for a method whose modules would not fit into memory."""
    check_fits(replace(config, modules_to_save=None), dimensions, model)
