"""Composition: several methods on one backbone, each at its own site, saved as one adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from peft import LoraConfig, PeftConfig
from torch import Tensor, nn

from foretoken.errors import ConfigError
from foretoken.methods.base import (
    AttentionBranch,
    Dimensions,
    ForetokenConfig,
    LayerEntry,
    Sites,
)


@dataclass
class StackConfig(ForetokenConfig):
    """Several methods as one adapter, e.g. prefix-propagation + LoRA.

    Rows of the members stand side by side in front of the text; their attention columns share one softmax; LoRA goes
    through peft's own LoRA layers.

    Args:
        configs: the members' configs (or, as saved, their fields).

    Raises:
        ConfigError: no members, a stack in a stack, two LoRAs, or a method that cannot be a member.

    >>> from foretoken import LoraConfig, PrefixPropagationConfig, StackConfig
    >>> stack = StackConfig(configs=[PrefixPropagationConfig(), LoraConfig(r=4)])
    >>> [type(member).__name__ for member in stack.members()]
    ['PrefixPropagationConfig', 'LoraConfig']
    """

    configs: list[Any] = field(default_factory=list, metadata={"help": "the configs of the methods in the stack"})

    method_type: ClassVar[str] = "FORETOKEN_STACK"
    make_member: ClassVar[Callable[[dict[str, Any]], PeftConfig]]  # set by the table of methods

    def validate(self) -> None:
        """Raise ConfigError for members that cannot be stacked; hold the members as plain data."""
        if not isinstance(self.configs, list | tuple) or not self.configs:
            raise ConfigError(f"a stack needs a list of at least one config; got {self.configs!r}")
        self.configs = [as_fields(member) for member in self.configs]
        wanted = [name for member in self.configs for name in member.pop("modules_to_save", None) or []]
        self.modules_to_save = list(dict.fromkeys([*(self.modules_to_save or []), *wanted])) or None
        members = self.members()
        if sum(isinstance(member, LoraConfig) for member in members) > 1:
            raise ConfigError("a stack takes at most one LoRA config; merge them into one with more target modules")

    def members(self) -> list[PeftConfig]:
        """Return the members as config objects."""
        return [type(self).make_member(dict(fields_)) for fields_ in self.configs]

    def own_members(self) -> list[ForetokenConfig]:
        """Return the members that foretoken builds itself."""
        return [member for member in self.members() if isinstance(member, ForetokenConfig)]

    def lora_member(self) -> LoraConfig | None:
        """Return the LoRA member, if there is one."""
        return next((member for member in self.members() if isinstance(member, LoraConfig)), None)

    def build(self, dimensions: Dimensions) -> Sites:
        """Return the members' sites, those of one place put together."""
        built = [member.build(dimensions) for member in self.own_members()]
        layers = {i: StackedEntry(parts) for i, parts in gathered(sites.layers for sites in built).items()}
        attention = {i: StackedBranch(parts) for i, parts in gathered(sites.attention for sites in built).items()}
        outputs = gathered(sites.outputs for sites in built)
        if any(len(parts) > 1 for parts in outputs.values()):
            raise ConfigError("two members of the stack train the same biases; leave out one of them")
        if not built:
            layers = {0: StackedEntry([])}
        return Sites(layers=layers, attention=attention, outputs={path: only for path, (only,) in outputs.items()})


def as_fields(member: Any) -> dict[str, Any]:
    """Return a member's fields as data that json can hold."""
    if isinstance(member, PeftConfig):
        member = member.to_dict()
    if not isinstance(member, dict):
        raise ConfigError(f"a stack's members are peft configs; got {type(member).__name__} {member!r}")
    return {key: plain(value) for key, value in member.items() if value is not None}


def plain(value: Any) -> Any:
    """Turn sets into sorted lists, enumeration members into their values."""
    if isinstance(value, set):
        return sorted(value)
    return getattr(value, "value", value)


def gathered(tables: Iterable[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """[{0: a}, {0: b, 1: c}] -> {0: [a, b], 1: [c]}."""
    together: dict[Any, list[Any]] = {}
    for table in tables:
        for key, module in table.items():
            together.setdefault(key, []).append(module)
    return together


class StackedEntry(LayerEntry):
    """Several methods at one layer entry; their rows stand side by side."""

    def __init__(self, parts: list[LayerEntry]) -> None:
        super().__init__()
        self.parts: Iterable[LayerEntry] = nn.ModuleList(parts)  # type: ignore[assignment]
        self.num_rows = sum(part.num_rows for part in parts)

    def first_rows(self, batch_size: int) -> Tensor:
        """Return the members' rows, one after the other."""
        return torch.cat([part.first_rows(batch_size) for part in self.parts if part.num_rows], dim=1)

    def on_rows(self, rows: Tensor) -> Tensor:
        """Give each member its own rows."""
        pieces = rows.split([part.num_rows for part in self.parts], dim=1)
        return torch.cat([part.on_rows(piece) for part, piece in zip(self.parts, pieces, strict=True)], dim=1)

    def on_text(self, text: Tensor, token_ids: Tensor | None) -> Tensor:
        """Let each member edit the text in turn."""
        for part in self.parts:
            text = part.on_text(text, token_ids)
        return text


class StackedBranch(AttentionBranch):
    """Several methods in one attention layer; their columns share one softmax."""

    def __init__(self, parts: list[AttentionBranch]) -> None:
        super().__init__()
        self.parts: Iterable[AttentionBranch] = nn.ModuleList(parts)  # type: ignore[assignment]
        self.num_columns = sum(part.num_columns for part in parts)

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """Return the members' columns, one after the other."""
        return torch.cat([part.scores(query, scale) for part in self.parts], dim=-1)

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Let each member use its own columns in turn."""
        pieces = probabilities.split([part.num_columns for part in self.parts], dim=-1)
        for part, piece in zip(self.parts, pieces, strict=True):
            out = part.combine(out, piece, query)
        return out
