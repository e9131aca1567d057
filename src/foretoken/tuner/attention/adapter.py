"""What the adapters at work add to one attention: the tuner's side of a backbone's ``AttentionAdapter``.

A backbone's attention module projects queries, keys and values and calls ``attend``. From there the way goes one step
down at a time: the decomposition, if an adapter attends to its prefix separately; the score columns of all adapters;
:func:`foretoken.attention.attend`.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from foretoken.attention import ExtraColumns, LinearMap, Mask, Weighting, own_weights
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.base import ADAPTER
from foretoken.backbones.masks import PrefixMask
from foretoken.backbones.module_value import Arguments, Keywords
from foretoken.methods.sites import ScoreColumns, SeparatePrefix
from foretoken.tuner.attention.columns import (
    AdapterColumns,
    PrefixKeys,
    Rotation,
    attend_columns,
    in_shared_places,
)
from foretoken.tuner.attention.decomposition import attend_decomposed
from foretoken.tuner.attention.linear_map import linear_map
from foretoken.tuner.forward.plan import Group, PassState, Phase, Plan
from foretoken.tuner.forward.sites import NAME, AroundModule, AttentionSite


class TunedAttention:
    """One attention module with the adapters' part in it.

    Attributes:
        module: the attention module, which carries the adapters' site.
        pass_state: the pass under way in the module's stack.
        layer: the layer's number in that stack.
        is_cross: the attention of a decoder to its encoder, whose keys hold no prefix.
        delivered: the vector for after the output projection, between ``deliver`` and that projection.
        rotation: how the queries of this call are rotated; None without rotary positions.
    """

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
        """The pass that is under way, as this layer sees it."""
        return self.pass_state.plan_at(self.layer)

    @property
    def acts(self) -> bool:
        """Whether the attention must do anything else than without adapters."""
        return self.prefix_mask is not None or self.has_part

    @property
    def rests(self) -> bool:
        """Whether the model computes as transformers made it."""
        return self.pass_state.rests

    @property
    def has_part(self) -> bool:
        """Whether ``attend`` differs from plain attention."""
        plan = self.plan
        if plan is None:
            return False
        # where the prefix runs alone its keys and values are kept; afterwards every query of the text sees them
        alone = (Phase.PREFIX_ONLY, Phase.PREFIX_CACHED)
        has_prefix = not self.is_cross and plan.prefix_length > 0 and plan.phase in alone
        return has_prefix or next(self.members(), None) is not None

    @property
    def prefix_mask(self) -> PrefixMask | None:
        """The prefix for which the attention must extend its masks itself."""
        plan = self.plan
        if plan is None or self.is_cross or not (plan.is_late and plan.prefix_length) or plan.phase is not Phase.JOINT:
            return None
        return PrefixMask(plan.prefix_mask(), plan.text_mask, plan.memo)

    @property
    def prefix_length(self) -> int:
        """How many of the hidden states, from the front, are the prefix."""
        return 0 if self.plan is None else self.plan.prefix_here

    @property
    def mixed_size(self) -> int | None:
        """B where each document names its adapter, or prefixes enter in turn; else None."""
        plan = self.pass_state.plan
        is_one = plan is None or not (plan.is_mixed or plan.is_staged)
        return None if plan is None or is_one else plan.batch_size

    @property
    def partial_prefix(self) -> Tensor | None:
        """The (B, P) mask of a prefix that some documents have a part of, or nothing; None where all have all of it."""
        plan = self.plan
        return None if plan is None or not plan.prefix_here or plan.has_whole_prefix else plan.prefix_mask()

    @property
    def may_pack(self) -> bool:
        """Whether the batch may be packed."""
        plan = self.pass_state.plan
        return plan is None or plan.may_pack

    @property
    def needs_keys(self) -> bool:
        """Whether the keys and values themselves are needed, and the batch padded."""
        return any(
            group.index is not None or member.text_kernel != "exponential" or member.global_alpha is not None
            for group, member in self.separate()
        )

    @property
    def needs_documents(self) -> bool:
        """Whether this attention is computed padded: some documents have columns, prefixes or edits of their own."""
        plan = self.plan
        if plan is None or not any(group.index is not None for group in plan.groups):
            return False
        if not plan.has_whole_prefix or self.has_edits(
            group.adapter for group in plan.groups if group.index is not None
        ):
            return True
        columns = [one for one in self.columns() if one.group.index is not None]
        sizes = {one.columns.num_columns for one in columns}
        covered = sum(len(one.group.index) for one in columns if one.group.index is not None)
        are_keys = all(one.rotation is None and one.columns.are_keys for one in columns)
        return bool(columns) and not (are_keys and len(sizes) == 1 and covered == plan.batch_size)

    def has_edits(self, adapters: Iterable[str]) -> bool:
        """Tell whether one of these adapters edits the output of a module inside this attention."""
        names = set(adapters)
        return any(
            isinstance(edit := getattr(hook, "__self__", None), AroundModule) and edit.acts(names)
            for module in self.module.modules()
            for hook in module._forward_hooks.values()
        )

    @contextmanager
    def document(self, number: int) -> Iterator[None]:
        """Let the plan be that of one document of the batch, and the rotation that of its queries."""
        plan, rotation = self.pass_state.plan, self.rotation
        if plan is not None and plan.packed is not None and rotation is not None:
            self.rotation = rotation.of_document(number, plan.packed.place_of(number), prefix_length=self.prefix_length)
        try:
            with self.pass_state.using(None if plan is None else plan.only(number)):
                yield
        finally:
            self.rotation = rotation

    def linear_map(self, module: nn.Module) -> LinearMap | None:
        """Return the map that a module is with the adapters at work on it; None where it is none.

        Maps may be folded into cheaper products (:mod:`foretoken.attention.engines.projected`).
        """
        groups = () if self.plan is None else self.plan.groups
        return linear_map(module, groups, is_mixed=self.mixed_size is not None)

    @property
    def text_is_frozen(self) -> bool:
        """Whether the text that enters this attention depends on nothing that is trained."""
        return self.layer == self.pass_state.frozen_text

    @contextmanager
    def packed(self, stream: PackedBatch) -> Iterator[None]:
        """Let the plan know that the hidden states are packed."""
        plan = self.pass_state.plan
        with self.pass_state.using(None if plan is None else replace(plan, packed=stream)):
            yield

    def members(self) -> Iterator[tuple[Group, ScoreColumns | SeparatePrefix]]:
        """Yield what the adapters at work do here, each with the documents that use it."""
        site: AttentionSite | None = getattr(self.module, NAME, None)
        for group, edit in () if site is None else site.at_work():
            for member in edit.members():
                yield group, member

    def columns(self) -> list[AdapterColumns]:
        """Return the score columns of the adapters at work."""
        return [
            AdapterColumns(group, member, self.rotation if member.position_free else None)
            for group, member in self.members()
            if isinstance(member, ScoreColumns)
        ]

    def separate(self) -> list[tuple[Group, SeparatePrefix]]:
        """Return what attends to the prefix separately, with the documents that use it."""
        return [(group, member) for group, member in self.members() if isinstance(member, SeparatePrefix)]

    def cached_prefix(self, plan: Plan) -> PrefixKeys | None:
        """Return the keys and values of a prefix that ran before the text."""
        if self.is_cross or plan.phase is not Phase.PREFIX_CACHED or not plan.prefix_length:
            return None
        key, value = plan.prefix_kv[self.layer]
        if plan.number is not None and len(key) > 1:
            key, value = (x[plan.number : plan.number + 1] for x in (key, value))
        mask = None if plan.has_whole_prefix else plan.prefix_mask()[:, None, None]
        free = plan.position_free_documents()
        if self.rotation is None or free is False:
            return PrefixKeys(key, value, mask)
        return PrefixKeys(key, value, mask, self.rotation if free is True else replace(self.rotation, documents=free))

    def attend(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, scale: float, dropout: float, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with all adapters' columns in its softmax; see the protocol in ``foretoken.backbones.base``."""
        plan = self.plan
        assert plan is not None
        if plan.phase is Phase.PREFIX_ONLY and not self.is_cross:
            assert key is not None
            assert value is not None
            plan.prefix_kv[self.layer] = (key, value)
        cached, columns, separate = self.cached_prefix(plan), self.columns(), self.separate()
        weighting = Weighting(dropout=dropout)
        if separate:
            return attend_decomposed(
                plan, cached, columns, separate, query, key, value, scale=scale, mask=mask, weighting=weighting
            )
        everything = [*([] if cached is None else [cached]), *in_shared_places(columns, query)]
        return attend_columns(everything, query, key, value, scale=scale, mask=mask, weighting=weighting)

    def note_rotation(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        """Note how queries are about to be rotated: a forward pre-hook of attention with rotary positions."""
        self.rotation = Rotation(*kwargs["position_embeddings"])

    def deliver(self, vector: Tensor | None) -> None:
        """Take the vector that is added after this attention's output projection."""
        self.delivered = vector

    def redeliver(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the vector that was delivered."""
        if self.delivered is not None:
            self.delivered = change(self.delivered)

    def after_projection(self, module: nn.Module, args: Arguments, output: Tensor) -> Tensor:
        """Add the delivered vector: a forward hook of the output projection."""
        vector, self.delivered = self.delivered, None
        if vector is None:
            return output
        vector = vector.to(output.dtype)
        return output + vector if torch.is_grad_enabled() else vector.add_(output)  # nobody else has the vector

    def own_weights(self, query: Tensor, key: Tensor, *, scale: float, mask: Mask) -> Tensor:
        """Return the (B, H, N, M) weights of the own keys: the attention of one-hot values, columns included."""
        plan = self.plan
        assert plan is not None
        cached, columns = self.cached_prefix(plan), self.columns()
        shared = in_shared_places(columns, query)
        sharing = [one for one in shared if not one.outside_softmax and not one.own_softmax]
        inside = [*([] if cached is None else [cached]), *sharing]
        extra = ExtraColumns(torch.cat([one.scores(query, scale) for one in inside], dim=-1) if inside else None)
        return own_weights(query, key, scale=scale, mask=mask, columns=extra)
