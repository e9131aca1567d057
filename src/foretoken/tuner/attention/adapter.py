"""What the adapters at work add to one attention: the tuner's side of a backbone's ``AttentionAdapter``.

Shapes: B batch, N queries, M keys, P rows in front of the text, H heads, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from peft.tuners.lora.layer import LoraLayer
from torch import Tensor, nn

from foretoken.attention import ExtraColumns, Mask, Weighting, own_weights
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.base import ADAPTER
from foretoken.backbones.masks import PrefixMask
from foretoken.methods.base import SeparatePrefix
from foretoken.tuner.attention.columns import Columns, Part, RowPart, attend_columns
from foretoken.tuner.attention.decomposition import SeparateColumns, attend_apart
from foretoken.tuner.attention.rotation import Rotation
from foretoken.tuner.forward.plan import PassState, Phase, Plan
from foretoken.tuner.forward.sites import NAME, AroundModule


class AttentionAdapter:
    """The adapters' part in one attention module."""

    def __init__(self, module: nn.Module, pass_state: PassState, layer: int, *, is_cross: bool) -> None:
        self.pass_state = pass_state
        self.layer = layer
        self.is_cross = is_cross
        self.delivered: Tensor | None = None
        self.rotation: Rotation | None = None
        self.module = module
        ADAPTER.set(module, self)

    @property
    def plan(self) -> Plan | None:
        """The pass that is under way."""
        return self.pass_state.plan

    @property
    def acts(self) -> bool:
        """Tell whether the attention must do anything else than without adapters."""
        return self.prefix_mask is not None or self.has_part

    @property
    def rests(self) -> bool:
        """Tell whether the model is to compute as transformers made it."""
        return self.pass_state.rests

    @property
    def has_part(self) -> bool:
        """Tell whether ``attend`` differs from plain attention."""
        plan = self.plan
        if plan is None:
            return False
        rows = not self.is_cross and plan.phase in (Phase.PREFIX_ONLY, Phase.PREFIX_CACHED)
        return rows or next(self.parts(plan), None) is not None

    @property
    def prefix_mask(self) -> PrefixMask | None:
        """Rows for which the attention must extend its masks itself."""
        plan = self.plan
        if plan is None or self.is_cross or not plan.late or plan.phase is not Phase.JOINT:
            return None
        return PrefixMask(plan.row_mask(), plan.text_mask, plan.memo)

    @property
    def prefix_length(self) -> int:
        """How many of the hidden states, from the front, are rows."""
        return 0 if self.plan is None else self.plan.rows_here

    @property
    def mixed_size(self) -> int | None:
        """B where each document names its adapter, else None."""
        return self.plan.batch_size if self.plan is not None and self.plan.is_mixed else None

    @property
    def needs_keys(self) -> bool:
        """Tell whether a part attends to rows and text apart."""
        return self.plan is not None and any(isinstance(part, SeparateColumns) for part in self.parts(self.plan))

    def idle(self, module: nn.Module) -> nn.Module | None:
        """Return the frozen module inside the LoRA of adapters that do not act now; None where something does."""
        acting = {group.adapter for group in self.plan.groups} if self.plan is not None else set()
        while True:
            if not all(is_idle(hook, acting) for hook in hooks_of(module)):
                return None
            if not isinstance(module, LoraLayer):
                return module
            names = acting if self.mixed_size else module.active_adapters
            if not module.disable_adapters and any(name in module.lora_A for name in names):
                return None
            module = module.base_layer

    @property
    def text_is_frozen(self) -> bool:
        """Tell whether the text that enters this attention depends on nothing that is trained."""
        return self.layer == 0 and self.pass_state.text_is_frozen

    @contextmanager
    def packed(self, stream: PackedBatch) -> Iterator[None]:
        """Let the plan know that the hidden states are packed."""
        plan = self.plan
        with self.pass_state.using(None if plan is None else replace(plan, stream=stream)):
            yield

    def parts(self, plan: Plan) -> Iterator[Part | SeparateColumns]:
        """Yield the members at work here."""
        site: Any = getattr(self.module, NAME, {})
        for group in plan.groups:
            if group.adapter in site:
                for branch in site[group.adapter].members():
                    if isinstance(branch, SeparatePrefix):
                        yield SeparateColumns(group, branch)
                    else:
                        yield Part(group, branch, self.rotation if branch.position_free else None)

    def row_part(self, plan: Plan) -> RowPart | None:
        """Return the rows that ran before the text."""
        if self.is_cross or plan.phase is not Phase.PREFIX_CACHED:
            return None
        key, value = plan.row_states[self.layer]
        hidden, free = None if plan.all_rows_everywhere else ~plan.row_mask(), plan.position_free()
        if self.rotation is None or free is False:
            return RowPart(key, value, hidden)
        return RowPart(key, value, hidden, self.rotation if free is True else replace(self.rotation, documents=free))

    def attend(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, scale: float, dropout: float, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with every part's columns in one softmax; see ``AttentionAdapter`` in backbones."""
        plan = self.plan
        assert plan is not None
        if plan.phase is Phase.PREFIX_ONLY and not self.is_cross:
            assert key is not None
            assert value is not None
            plan.row_states[self.layer] = (key, value)
        found, rows = list(self.parts(plan)), self.row_part(plan)
        parts = [part for part in found if isinstance(part, Part)]
        apart = [part for part in found if isinstance(part, SeparateColumns)]
        weighting = Weighting(dropout=dropout)
        if apart:
            assert key is not None
            assert value is not None
            return attend_apart(
                plan, rows, parts, apart, query, key, value, scale=scale, mask=mask, weighting=weighting
            )
        columns: list[Columns] = [*([] if rows is None else [rows]), *parts]
        return attend_columns(columns, query, key, value, scale=scale, mask=mask, weighting=weighting)

    def note_rotation(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note how queries are about to be rotated: a forward pre-hook of attention with rotary positions."""
        self.rotation = Rotation(*kwargs["position_embeddings"])

    def deliver(self, vector: Tensor | None) -> None:
        """Take the vector that is added after this attention's output projection."""
        self.delivered = vector

    def redeliver(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the vector that was delivered."""
        if self.delivered is not None:
            self.delivered = change(self.delivered)

    def after_projection(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Add the delivered vector: a forward hook of the output projection."""
        vector, self.delivered = self.delivered, None
        return output if vector is None else output + vector.to(output.dtype)

    def own_weights(self, query: Tensor, key: Tensor, *, scale: float, mask: Mask) -> Tensor:
        """Return the (B, H, N, M) weights of the own keys: the attention of one-hot values, columns included."""
        plan = self.plan
        assert plan is not None
        rows = self.row_part(plan)
        parts = [part for part in self.parts(plan) if isinstance(part, Part) and not part.outside_softmax]
        columns = [part.scores(query, scale) for part in ([] if rows is None else [rows])]
        columns += [part.scores(query, scale) for part in parts]
        extra = ExtraColumns(torch.cat(columns, dim=-1) if columns else None)
        return own_weights(query, key, scale=scale, mask=mask, columns=extra)


def hooks_of(module: nn.Module) -> Iterable[Any]:
    """Return what runs before and after a module."""
    return (*module._forward_pre_hooks.values(), *module._forward_hooks.values())


def is_idle(hook: Any, adapters: Collection[str]) -> bool:
    """Tell whether a hook is that of an edit by none of these adapters."""
    edit = getattr(hook, "__self__", None)
    return isinstance(edit, AroundModule) and not edit.acts(adapters)
