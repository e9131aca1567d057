"""Attention to the text and attention to the rows in front of it, normalised separately (kernel decomposition).

Li et al. 2023, eq. 7: ``H = Kern(Q, C W_k, C W_v) + alpha Kern(Q, P W_k, P W_v)``.

Shapes: B batch, N queries, M keys, P rows in front of the text, H heads, K head width, G global keys, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foretoken.attention import Mask, Weighting, Window, causal_mask, repeat_heads
from foretoken.attention.kernels import kernel_attention
from foretoken.methods.base import SeparatePrefix
from foretoken.tuner.attention.columns import Columns, Part, RowPart, attend_columns
from foretoken.tuner.attention.rotation import Rotation, met_by
from foretoken.tuner.forward.plan import Group, Phase, Plan


@dataclass(frozen=True)
class SeparateColumns:
    """A member of an adapter that attends to the rows apart from the text, with the documents that use it."""

    group: Group
    branch: SeparatePrefix


@dataclass(frozen=True)
class Rows:
    """The rows' keys and values (B, H, P, K), and which of them a query sees (broadcastable to (B, 1, N, P))."""

    key: Tensor
    value: Tensor
    mask: Tensor | None
    rotation: Rotation | None = None

    def attended(self, query: Tensor, *, kernel: str, scale: float, dropout: float) -> Tensor:
        """Return the attention to the rows alone: (B, H, N, K)."""
        key, value = (repeat_heads(x.to(query.dtype), query.shape[1]) for x in (self.key, self.value))
        query = met_by(query, self.rotation)
        return kernel_attention(query, key, value, kernel=kernel, scale=scale, mask=self.mask, dropout=dropout)


@dataclass(frozen=True)
class LambdaColumn:
    """The rows as one column whose probability is the softmax's own lambda (eq. 6)."""

    rows: Rows
    scale: float
    outside_softmax = False

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """Return the logarithm of the rows' summed exponentials: (B, H, N, 1)."""
        key = repeat_heads(self.rows.key.to(query.dtype), query.shape[1])
        scores = met_by(query, self.rows.rotation) @ key.transpose(-1, -2) * scale
        if self.rows.mask is not None:
            scores = scores.masked_fill(~self.rows.mask, float("-inf"))
        return scores.logsumexp(dim=-1, keepdim=True)

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Return ``(1 - lambda) f + lambda Kern_rows``."""
        rows = self.rows.attended(query, kernel="exponential", scale=self.scale, dropout=0.0)
        return out + probabilities.to(out.dtype) * rows

    def after_projection(self, probabilities: Tensor, query: Tensor) -> None:
        """Add nothing after the projection."""

    def keys(self, query: Tensor, documents: int) -> None:
        """Return nothing: the column's score is no key's own."""


def attend_apart(
    plan: Plan,
    rows: RowPart | None,
    parts: Sequence[Part],
    apart: Sequence[SeparateColumns],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Mask,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Let the documents of ``apart`` attend to text and rows separately, all others as they do otherwise."""
    if all(part.group.index is None for part in apart):
        branches = [part.branch for part in apart]
        return attend_separately(
            plan, rows, list(parts), branches, query, key, value, scale=scale, mask=mask, dropout=weighting.dropout
        )
    columns: list[Columns] = [*([] if rows is None else [rows]), *parts]
    out, after = attend_columns(columns, query, key, value, scale=scale, mask=mask, weighting=weighting)
    for adapter in dict.fromkeys(part.group.adapter for part in apart):
        mine = [part for part in apart if part.group.adapter == adapter]
        group = mine[0].group
        inner = [narrowed(part, group) for part in parts if part.group.adapter == adapter]
        new, more = attend_separately(
            of_group(plan, group),
            None if rows is None else taken_rows(rows, group),
            inner,
            [part.branch for part in mine],
            *(group.take(x) for x in (query, key, value)),
            scale=scale,
            mask=mask if group.index is None else mask.take(group.index),
            dropout=weighting.dropout,
        )
        out = group.put(out, new)
        if more is not None:
            after = group.put(query.new_zeros(query.shape[0], *more.shape[1:]) if after is None else after, more)
    return out, after


def attend_separately(
    plan: Plan,
    rows: RowPart | None,
    parts: Sequence[Columns],
    branches: Sequence[SeparatePrefix],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Mask,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention to the text, with the branches' attentions to rows and global keys added."""
    text_kernel = branches[0].text_kernel
    seen = rows_seen(plan, rows, key, value)
    mask, key, value = mask.without_prefix(plan.rows_here, key, value)
    columns = [*parts, *(LambdaColumn(seen, scale) for branch in branches if branch.weight(query) is None)]
    after: Tensor | None = None
    if key.shape[2] or parts:
        local = mask.without_globals() if branches[0].global_alpha is not None and isinstance(mask, Window) else mask
        weighting = Weighting(text_kernel, dropout)
        out, after = attend_columns(columns, query, key, value, scale=scale, mask=local, weighting=weighting)
    elif any(branch.weight(query) is None for branch in branches):  # nothing but rows: lambda is 1
        out = seen.attended(query, kernel="exponential", scale=scale, dropout=dropout)
    else:
        out = torch.zeros_like(query)
    for branch in branches:
        if (weight := branch.weight(query)) is not None:
            out = out + weight * seen.attended(query, kernel=branch.kernel, scale=scale, dropout=dropout)
        if branch.global_alpha is not None and isinstance(mask, Window):
            weighting = Weighting(text_kernel, dropout)
            out = out + branch.global_alpha * global_attention(query, key, value, mask, scale, weighting)
    return out, after


def rows_seen(plan: Plan, rows: RowPart | None, key: Tensor, value: Tensor) -> Rows:
    """Return the rows' keys and values: those that ran before the text, or the first P of the sequence."""
    if rows is not None:
        mask = None if rows.hidden is None else ~rows.hidden[:, None, None]
        return Rows(rows.key, rows.value, mask, rows.rotation)
    here = plan.rows_here
    mask = None if plan.all_rows_everywhere else plan.row_mask()[:, None, None]
    if plan.phase is Phase.PREFIX_ONLY:
        earlier = causal_mask(here, here, key.device)
        mask = earlier if mask is None else mask & earlier
    return Rows(key[:, :, :here], value[:, :, :here], mask)


def global_attention(
    query: Tensor, key: Tensor, value: Tensor, window: Window, scale: float, weighting: Weighting
) -> Tensor:
    """Return the attention to the text's global keys alone: (B, H, N, K)."""
    key, value, mask = window.global_keys(key), window.global_keys(value), window.global_mask[:, None, None]
    kernel, dropout = weighting.kernel, weighting.dropout
    return kernel_attention(query, key, value, kernel=kernel, scale=scale, mask=mask, dropout=dropout)


def of_group(plan: Plan, group: Group) -> Plan:
    """Return the plan as one group's documents see it."""
    size = 0 if group.index is None else group.index.shape[0]
    return replace(plan, groups=(replace(group, index=None),), batch_size=size)


def narrowed(part: Part, group: Group) -> Part:
    """Return a part for a batch of its own documents alone."""
    rotation = None if part.rotation is None else part.rotation.of(group)
    return Part(replace(part.group, index=None), part.branch, rotation)


def taken_rows(rows: RowPart, group: Group) -> RowPart:
    """Return the rows of one group's documents."""
    hidden = None if rows.hidden is None else group.take(rows.hidden)
    rotation = None if rows.rotation is None else rows.rotation.of(group)
    return RowPart(group.take(rows.key), group.take(rows.value), hidden, rotation)
