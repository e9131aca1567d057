"""Attention to the text and attention to the prefix, normalised separately (kernel decomposition).

Li et al. 2023, eq. 7: ``H = Kern(Q, C W_k, C W_v) + alpha Kern(Q, P W_k, P W_v)``.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, G global keys, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from foretoken.attention import Mask, Weighting, Window, causal_mask
from foretoken.attention.kernels import kernel_attention
from foretoken.methods.base import SeparatePrefix
from foretoken.tuner.attention.columns import (
    AdapterColumns,
    BatchColumns,
    LambdaColumn,
    PrefixKeys,
    attend_columns,
    in_shared_places,
)
from foretoken.tuner.forward.plan import Group, Phase, Plan


def attend_decomposed(
    plan: Plan,
    cached: PrefixKeys | None,
    columns: Sequence[AdapterColumns],
    separate: Sequence[tuple[Group, SeparatePrefix]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Mask,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Let the documents of ``separate`` attend to text and prefix separately, all others as they do otherwise."""
    if all(group.index is None for group, _ in separate):
        own = [member for _, member in separate]
        return attend_separately(
            plan, cached, columns, own, query, key, value, scale=scale, mask=mask, dropout=weighting.dropout
        )
    everything = [*([] if cached is None else [cached]), *in_shared_places(columns, query)]
    out, after = attend_columns(everything, query, key, value, scale=scale, mask=mask, weighting=weighting)
    for adapter in dict.fromkeys(group.adapter for group, _ in separate):
        group = next(group for group, _ in separate if group.adapter == adapter)
        new, more = attend_separately(
            of_group(plan, group),
            None if cached is None else cached.of(group),
            [one.alone() for one in columns if one.group.adapter == adapter],
            [member for other, member in separate if other.adapter == adapter],
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
    cached: PrefixKeys | None,
    columns: Sequence[BatchColumns],
    separate: Sequence[SeparatePrefix],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Mask,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention to the text, with the attentions to the prefix and to global keys added."""
    of_text = Weighting(separate[0].text_kernel, dropout)
    prefix = prefix_keys(plan, key, value) if cached is None else cached
    mask, key, value = mask.without_prefix(plan.prefix_here, key, value)
    lambdas = [LambdaColumn(prefix, scale) for own in separate if own.weight(query) is None]
    after: Tensor | None = None
    if key.shape[2] or columns:
        local = mask.without_globals() if separate[0].global_alpha is not None and isinstance(mask, Window) else mask
        out, after = attend_columns([*columns, *lambdas], query, key, value, scale=scale, mask=local, weighting=of_text)
    elif lambdas:  # nothing but the prefix: lambda is 1
        out = prefix.attended(query, kernel="exponential", scale=scale, dropout=dropout)
    else:
        out = torch.zeros_like(query)
    for own in separate:
        if (weight := own.weight(query)) is not None:
            out = out + weight * prefix.attended(
                query, kernel=own.kernel, scale=scale, dropout=dropout, projection=own.projection
            )
        if own.global_alpha is not None and isinstance(mask, Window):
            out = out + own.global_alpha * global_attention(query, key, value, mask, scale, of_text)
    return out, after


def prefix_keys(plan: Plan, key: Tensor, value: Tensor) -> PrefixKeys:
    """Return the keys and values of a prefix that stands before the text: the first P of the sequence."""
    here = plan.prefix_here
    mask = None if plan.has_whole_prefix else plan.prefix_mask()[:, None, None]
    if plan.phase is Phase.PREFIX_ONLY:
        earlier = causal_mask(here, here, key.device)
        mask = earlier if mask is None else mask & earlier
    return PrefixKeys(key[:, :, :here], value[:, :, :here], mask)


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
    return replace(plan, groups=(replace(group, index=None, is_whole=False),), batch_size=size)
