"""The linear map of a module together with the active adapters on it: LoRA, trained biases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peft.tuners.lora.layer import Linear as LoraLinear
from peft.tuners.lora.layer import LoraLayer
from torch import nn

from foretoken.attention import LinearMap
from foretoken.backbones.fast_maps import plain_map
from foretoken.tuner.forward.plan import Group
from foretoken.tuner.forward.sites import AroundModule


def linear_map(module: nn.Module, groups: Sequence[Group] = (), *, is_mixed: bool = False) -> LinearMap | None:
    """Return the linear map of a module with these adapters; None if it is no such map, or differs between documents.

    Args:
        module: a linear layer, with LoRA of peft's or without.
        groups: the active adapters of foretoken's.
        is_mixed: each document names its adapter.
    """
    edits = dict.fromkeys(around(hook) for hook in hooks_of(module))
    if None in edits:  # the user has registered a hook
        return None
    if isinstance(module, LoraLayer):
        folded = with_lora(module, linear_map(module.base_layer, groups, is_mixed=is_mixed), groups, is_mixed=is_mixed)
    else:
        folded = plain_map(module)
    for edit in filter(None, edits):
        for group, change in edit.at_work(groups):
            is_one = folded is not None and group.index is None and group.rows is None and edit.width is None
            folded = change.folded(folded) if is_one else None
    return folded


def with_lora(
    layer: LoraLayer, frozen: LinearMap | None, groups: Sequence[Group], *, is_mixed: bool
) -> LinearMap | None:
    """Return a map with its active low-rank updates; None where LoRA does anything else."""
    names = {group.adapter for group in groups} if is_mixed else layer.active_adapters
    acting = [name for name in names if name in layer.lora_A]
    if frozen is None or layer.merged:
        return None
    if layer.disable_adapters or not acting:
        return frozen
    if is_mixed or type(layer) is not LoraLinear:
        return None
    updated = frozen
    for name in acting:
        down, up, dropout = layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name]
        drops = isinstance(dropout, nn.Dropout) and dropout.p > 0 and dropout.training
        is_known = isinstance(dropout, nn.Dropout | nn.Identity) and name not in layer.lora_variant
        if drops or not is_known or up.bias is not None or hooks_of(down) or hooks_of(up):
            return None
        updated = updated.updated(down.weight, up.weight * layer.scaling[name])
    return updated


def around(hook: Callable[..., object]) -> AroundModule | None:
    """Return the edit that a hook belongs to; None for any other hook."""
    edit = getattr(hook, "__self__", None)
    return edit if isinstance(edit, AroundModule) else None


def hooks_of(module: nn.Module) -> tuple[Callable[..., object], ...]:
    """Return the forward hooks and pre-hooks of a module."""
    return (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
