"""What the adapters at work add to one attention: the tuner's side of a backbone's ``Branch``.

Shapes: B batch, N queries, M keys, P rows in front of the text, H heads, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretoken.attention import attend
from foretoken.backbones.base import PORT, RowsInFront
from foretoken.methods.base import AttentionBranch
from foretoken.tuner.runtime import Group, Phase, Plan, Runtime
from foretoken.tuner.sites import NAME


@dataclass(frozen=True)
class Part:
    """One member of an adapter at one attention, with the documents that use it."""

    group: Group
    branch: AttentionBranch

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, X); -inf for the documents of other adapters."""
        part = self.branch.scores(self.group.take(query), scale)
        if self.group.index is None:
            return part
        hidden = query.new_full((*query.shape[:-1], self.branch.num_columns), float("-inf"))
        return self.group.put(hidden, part)

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Let the branch use the probabilities of its columns."""
        take = self.group.take
        return self.group.put(out, self.branch.combine(take(out), take(probabilities), take(query)))

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return the branch's (B, N, D) vector, zero for the documents of other adapters."""
        vector = self.branch.after_projection(self.group.take(probabilities), self.group.take(query))
        if vector is None or self.group.index is None:
            return vector
        return self.group.put(vector.new_zeros(query.shape[0], *vector.shape[1:]), vector)


@dataclass(frozen=True)
class RowPart:
    """The keys and values of rows that ran before the text, as columns that every query sees."""

    key: Tensor  # (B or 1, H_kv, P, K)
    value: Tensor
    hidden: Tensor | None  # (B, P) bool, True where a document lacks a row

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, P)."""
        scores = query @ self.repeated(self.key, query).transpose(-1, -2) * scale
        if self.hidden is None:
            return scores
        return scores.masked_fill(self.hidden[:, None, None], float("-inf"))

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Add ``p V``."""
        return out + probabilities.to(out.dtype) @ self.repeated(self.value, query)

    def after_projection(self, probabilities: Tensor, query: Tensor) -> None:
        """Rows add nothing after the projection."""

    @staticmethod
    def repeated(x: Tensor, query: Tensor) -> Tensor:
        """Repeat the (B or 1, H_kv, P, K) heads for grouped queries."""
        return x.to(query.dtype).repeat_interleave(query.shape[1] // x.shape[1], dim=1)


class Port:
    """The adapters' part in one attention module."""

    def __init__(self, module: nn.Module, runtime: Runtime, layer: int, *, is_cross: bool) -> None:
        self.runtime = runtime
        self.layer = layer
        self.is_cross = is_cross
        self.delivered: Tensor | None = None
        self.module = module
        module.__dict__[PORT] = self

    @property
    def plan(self) -> Plan | None:
        """The pass that is under way."""
        return self.runtime.plan

    @property
    def acts(self) -> bool:
        """Tell whether the attention must do anything else than without adapters."""
        return self.rows_in_front is not None or self.has_part

    @property
    def has_part(self) -> bool:
        """Tell whether ``attend`` differs from plain attention."""
        plan = self.plan
        if plan is None:
            return False
        rows = not self.is_cross and plan.phase in (Phase.ALONE, Phase.BEFORE)
        return rows or next(self.parts(plan), None) is not None

    @property
    def rows_in_front(self) -> RowsInFront | None:
        """Rows for which the attention must extend its masks itself."""
        plan = self.plan
        if plan is None or self.is_cross or not plan.late or plan.phase is not Phase.TOGETHER:
            return None
        return RowsInFront(plan.row_mask(), plan.text_mask, plan.memo)

    @property
    def rows_here(self) -> int:
        """How many of the hidden states, from the front, are rows."""
        return 0 if self.plan is None else self.plan.rows_here

    def parts(self, plan: Plan) -> Iterator[Part]:
        """Yield the members at work here."""
        site = getattr(self.module, NAME, None)
        for group in plan.groups if site is not None else ():
            if group.adapter in site:
                yield from (Part(group, branch) for branch in site[group.adapter].members())

    def row_part(self, plan: Plan) -> RowPart | None:
        """Return the rows that ran before the text."""
        if self.is_cross or plan.phase is not Phase.BEFORE:
            return None
        key, value = plan.row_states[self.layer]
        return RowPart(key, value, None if plan.all_rows_everywhere else ~plan.row_mask())

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float, **masks: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with every part's columns in one softmax; see :class:`foretoken.backbones.base.Branch`."""
        plan = self.plan
        assert plan is not None
        if plan.phase is Phase.ALONE and not self.is_cross:
            plan.row_states[self.layer] = (key, value)
        rows = self.row_part(plan)
        parts = list(self.parts(plan))
        sharing: list[Part | RowPart] = [part for part in parts if not part.branch.keeps_out]
        sharing = sharing if rows is None else [rows, *sharing]
        keeping: list[Part | RowPart] = [part for part in parts if part.branch.keeps_out]
        shared = [part.scores(query, scale) for part in sharing]
        kept = [part.scores(query, scale) for part in keeping]

        def run(columns: list[Tensor], value: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            extra = torch.cat(columns, dim=-1) if columns else None
            return attend(query, key, value, scale=scale, extra_scores=extra, **options, **masks)

        if not kept:
            out, p_shared = run(shared, value, dropout=dropout)
            return combined(sharing, shared, out, p_shared, query)
        # f by itself, not out / (1 - lambda): where lambda rounds to 1 nothing of f is left in out. And the kept
        # columns' probabilities know no dropout: they scale values, they select no keys.
        out, p_shared = run(shared, value, dropout=dropout)
        out, after = combined(sharing, shared, out, p_shared, query)
        _, everything = run([*shared, *kept], value)
        assert everything is not None
        width = sum(column.shape[-1] for column in shared)
        out, more = combined(keeping, kept, out, everything[..., width:], query)
        return out, added(after, more)

    def deliver(self, vector: Tensor | None) -> None:
        """Take the vector that is added after this attention's output projection."""
        self.delivered = vector

    def after_projection(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Add the delivered vector: a forward hook of the output projection."""
        vector, self.delivered = self.delivered, None
        return output if vector is None else output + vector.to(output.dtype)

    def own_weights(self, query: Tensor, key: Tensor, *, scale: float, **masks: Any) -> Tensor:
        """Return the (B, H, N, M) weights of the own keys: the attention of one-hot values, columns included."""
        plan = self.plan
        assert plan is not None
        rows = self.row_part(plan)
        parts: list[Part | RowPart] = [part for part in self.parts(plan) if not part.branch.keeps_out]
        columns = [part.scores(query, scale) for part in (parts if rows is None else [rows, *parts])]
        one_hot = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
        extra = torch.cat(columns, dim=-1) if columns else None
        weights, _ = attend(query, key, one_hot, scale=scale, extra_scores=extra, engine="reference", **masks)
        return weights


def combined(
    parts: list[Part | RowPart], columns: list[Tensor], out: Tensor, probabilities: Tensor | None, query: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Let each part use the probabilities of its own columns; sum what they add after the projection."""
    start, after = 0, None
    for part, column in zip(parts, columns, strict=True):
        assert probabilities is not None
        own = probabilities[..., start : start + column.shape[-1]]
        start += column.shape[-1]
        after = added(after, part.after_projection(own, query))
        out = part.combine(out, own, query)
    return out, after


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two vectors, either of which may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b
