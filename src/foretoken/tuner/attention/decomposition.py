"""Attention to the text and attention to the rows in front of it, normalised separately (kernel decomposition).

Li et al. 2023, eq. 7: ``H = Kern(Q, C W_k, C W_v) + alpha Kern(Q, P W_k, P W_v)``.

Shapes: B batch, N queries, M keys, P rows in front of the text, H heads, K head width, G global keys, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foretoken.attention import Blocks, Window
from foretoken.attention.engines.dense import causal_mask, repeat_heads
from foretoken.attention.engines.window import gathered, is_global
from foretoken.attention.kernels import kernel_attention
from foretoken.errors import AdapterError
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
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Let the documents of ``apart`` attend to text and rows separately, all others as they do otherwise."""
    if all(part.group.index is None for part in apart):
        return attend_separately(plan, rows, list(parts), [part.branch for part in apart], query, key, value, **options)
    out, after = attend_columns([*([] if rows is None else [rows]), *parts], query, key, value, **options)
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
            **{name: taken(x, group) for name, x in options.items()},
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
    dropout: float,
    **masks: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention to the text, with the branches' attentions to rows and global keys added."""
    here, text_kernel = plan.rows_here, branches[0].text_kernel
    seen = rows_seen(plan, rows, key, value)
    if "window" in masks:  # queries and keys share their positions: rows are masked, not cut away
        masks = {**masks, "window": text_window(masks["window"], here)}
    elif "blocks" in masks:
        masks = {**masks, "blocks": replace(masks["blocks"], key_mask=text_keys(masks["blocks"].key_mask, here))}
    else:
        key, value, masks = key[:, :, here:], value[:, :, here:], text_masks(masks, here)
    columns = [*parts, *(LambdaColumn(seen, scale) for branch in branches if branch.weight(query) is None)]
    after: Tensor | None = None
    if key.shape[2] or parts:
        local = without_globals(masks) if branches[0].global_alpha is not None else masks
        out, after = attend_columns(
            columns, query, key, value, scale=scale, dropout=dropout, kernel=text_kernel, **local
        )
    elif any(branch.weight(query) is None for branch in branches):  # nothing but rows: lambda is 1
        out = seen.attended(query, kernel="exponential", scale=scale, dropout=dropout)
    else:
        out = torch.zeros_like(query)
    for branch in branches:
        if (weight := branch.weight(query)) is not None:
            out = out + weight * seen.attended(query, kernel=branch.kernel, scale=scale, dropout=dropout)
        if branch.global_alpha is not None and "window" in masks:
            options = {"kernel": text_kernel, "scale": scale, "dropout": dropout}
            out = out + branch.global_alpha * global_attention(query, key, value, masks["window"], **options)
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


def text_masks(masks: dict[str, Any], here: int) -> dict[str, Any]:
    """Return an attention's masks for the keys of the text alone.

    Raises:
        AdapterError: a kind of mask that cannot be divided.
    """
    if not here:
        return masks
    if unknown := set(masks) - {"mask", "is_causal"}:
        raise AdapterError(f"this family's attention cannot be divided into text and rows: it has {min(unknown)}")
    mask = masks.get("mask")
    return {"mask": mask if mask is None or mask.shape[-1] == 1 else mask[..., here:]}


def text_window(window: Window, here: int) -> Window:
    """Return the window with the rows seen by nobody; the rows' own queries are answered elsewhere, as global ones."""
    key_mask = text_keys(window.key_mask, here)
    return replace(window, key_mask=key_mask, global_mask=window.global_mask & (window.global_index >= here))


def text_keys(key_mask: Tensor, here: int) -> Tensor:
    """Return the (B, M) mask with the rows seen by nobody."""
    return key_mask & (torch.arange(key_mask.shape[1], device=key_mask.device) >= here)


def without_globals(masks: dict[str, Any]) -> dict[str, Any]:
    """Return the masks with the global keys seen by nobody."""
    window: Window | None = masks.get("window")
    if window is None:
        return masks
    key_mask = window.key_mask & ~is_global(window)
    local = replace(window, key_mask=key_mask, global_mask=torch.zeros_like(window.global_mask))
    return {**masks, "window": local}


def global_attention(query: Tensor, key: Tensor, value: Tensor, window: Window, **options: Any) -> Tensor:
    """Return the attention to the text's global keys alone: (B, H, N, K)."""
    key, value = gathered(key, window.global_index), gathered(value, window.global_index)
    return kernel_attention(query, key, value, mask=window.global_mask[:, None, None], **options)


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


def taken(option: Any, group: Group) -> Any:
    """Return one group's documents of a mask; anything else stays as it is."""
    if isinstance(option, Window):
        return Window(
            option.one_sided,
            group.take(option.key_mask),
            group.take(option.global_index),
            group.take(option.global_mask),
        )
    if isinstance(option, Blocks):
        return replace(option, key_mask=group.take(option.key_mask))
    if isinstance(option, Tensor) and option.dim() == 4 and option.shape[0] > 1:
        return group.take(option)
    return option
