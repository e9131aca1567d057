"""Attention to the text and attention to the prefix, normalised separately (kernel decomposition).

Li et al. 2023, eq. 7: ``H = Kern(Q, C W_k, C W_v) + alpha Kern(Q, P W_k, P W_v)``.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, G global keys, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from foretoken.attention import Blocks, Window
from foretoken.attention.engines.dense import causal_mask
from foretoken.attention.engines.window import gathered, is_global
from foretoken.attention.kernels import kernel_attention
from foretoken.errors import AdapterError
from foretoken.methods.base import SeparatePrefix
from foretoken.tuner.attention.columns import AdapterColumns, BatchColumns, LambdaColumn, PrefixKeys, attend_columns
from foretoken.tuner.forward.plan import Group, Phase, Plan


def attend_decomposed(
    plan: Plan,
    cached: PrefixKeys | None,
    columns: Sequence[AdapterColumns],
    separate: Sequence[tuple[Group, SeparatePrefix]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Let the documents of ``separate`` attend to text and prefix separately, all others as they do otherwise."""
    if all(group.index is None for group, _ in separate):
        return attend_separately(plan, cached, columns, [own for _, own in separate], query, key, value, **options)
    out, after = attend_columns([*([] if cached is None else [cached]), *columns], query, key, value, **options)
    for adapter in dict.fromkeys(group.adapter for group, _ in separate):
        group = next(group for group, _ in separate if group.adapter == adapter)
        new, more = attend_separately(
            of_group(plan, group),
            None if cached is None else cached.of(group),
            [one.alone() for one in columns if one.group.adapter == adapter],
            [own for other, own in separate if other.adapter == adapter],
            *(group.take(x) for x in (query, key, value)),
            **{name: taken(x, group) for name, x in options.items()},
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
    dropout: float,
    **masks: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention to the text, with the attentions to the prefix and to global keys added."""
    here, text_kernel = plan.prefix_here, separate[0].text_kernel
    prefix = prefix_keys(plan, key, value) if cached is None else cached
    if "window" in masks:  # queries and keys share their positions: the prefix is masked, not cut away
        masks = {**masks, "window": text_window(masks["window"], here)}
    elif "blocks" in masks:
        masks = {**masks, "blocks": replace(masks["blocks"], key_mask=text_keys(masks["blocks"].key_mask, here))}
    else:
        key, value, masks = key[:, :, here:], value[:, :, here:], text_masks(masks, here)
    lambdas = [LambdaColumn(prefix, scale) for own in separate if own.weight(query) is None]
    after: Tensor | None = None
    if key.shape[2] or columns:
        local = without_globals(masks) if separate[0].global_alpha is not None else masks
        out, after = attend_columns(
            [*columns, *lambdas], query, key, value, scale=scale, dropout=dropout, kernel=text_kernel, **local
        )
    elif lambdas:  # nothing but the prefix: lambda is 1
        out = prefix.attended(query, kernel="exponential", scale=scale, dropout=dropout)
    else:
        out = torch.zeros_like(query)
    for own in separate:
        if (weight := own.weight(query)) is not None:
            out = out + weight * prefix.attended(query, kernel=own.kernel, scale=scale, dropout=dropout)
        if own.global_alpha is not None and "window" in masks:
            options = {"kernel": text_kernel, "scale": scale, "dropout": dropout}
            out = out + own.global_alpha * global_attention(query, key, value, masks["window"], **options)
    return out, after


def prefix_keys(plan: Plan, key: Tensor, value: Tensor) -> PrefixKeys:
    """Return the keys and values of a prefix that stands before the text: the first P of the sequence."""
    here = plan.prefix_here
    mask = None if plan.is_prefix_shared else plan.prefix_mask()[:, None, None]
    if plan.phase is Phase.PREFIX_ONLY:
        earlier = causal_mask(here, here, key.device)
        mask = earlier if mask is None else mask & earlier
    return PrefixKeys(key[:, :, :here], value[:, :, :here], mask)


def text_masks(masks: dict[str, Any], here: int) -> dict[str, Any]:
    """Return an attention's masks for the keys of the text alone.

    Raises:
        AdapterError: a kind of mask that cannot be divided.
    """
    if not here:
        return masks
    if unknown := set(masks) - {"mask", "is_causal"}:
        raise AdapterError(f"this family's attention cannot be divided into text and prefix: it has {min(unknown)}")
    mask = masks.get("mask")
    return {"mask": mask if mask is None or mask.shape[-1] == 1 else mask[..., here:]}


def text_window(window: Window, here: int) -> Window:
    """Return the window without the prefix among its keys; the prefix's queries are computed as global ones are."""
    key_mask = text_keys(window.key_mask, here)
    return replace(window, key_mask=key_mask, global_mask=window.global_mask & (window.global_index >= here))


def text_keys(key_mask: Tensor, here: int) -> Tensor:
    """Return the (B, M) mask of keys with the prefix masked."""
    return key_mask & (torch.arange(key_mask.shape[1], device=key_mask.device) >= here)


def without_globals(masks: dict[str, Any]) -> dict[str, Any]:
    """Return the masks with the global keys masked."""
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
