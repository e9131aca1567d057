"""Full attention: masked, causal, grouped-query. Engines ``sdpa`` and ``reference``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention.columns import divided, joined, softmax_with_columns
from foretoken.attention.kernels import as_exponential, kernel_attention


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat the (B, H_kv, M, K) heads so that there are ``heads`` of them."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers to add to the scores: 0 and -inf for a bool mask."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the (N, M) bool mask in which query i sees keys 0..i: a static cache has room behind the text's keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()


def attend_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Tensor | None,
    is_causal: bool,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    kept: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Write the definition down with the whole score matrix; the test's yardstick."""
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if is_causal:
        mask = causal_mask(query.shape[-2], key.shape[-2], query.device)
    if kernel != "exponential":
        return kernel_attention(query, key, value, kernel=kernel, scale=scale, mask=mask, dropout=dropout), None
    scores = query @ key.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + additive(mask, scores.dtype)
    own, extra = softmax_with_columns(scores, extra_scores, kept)
    if dropout:
        shared, apart = divided(extra, kept)
        own, extra = F.dropout(own, dropout), joined(None if shared is None else F.dropout(shared, dropout), apart)
    return own @ value, extra


def attend_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Tensor | None,
    is_causal: bool,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    front: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run PyTorch's fused kernels, keys in front and the extra columns included.

    A column of arbitrary scores becomes an ordinary key: X dimensions are appended to the queries, holding
    ``e / scale``, and the X new keys are one-hot there and zero elsewhere; the values get X dimensions in which the
    new keys are one-hot, so that the kernel's own output carries ``p_extra``. Autograd needs nothing more.
    """
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if front is not None:
        if is_causal:
            mask, is_causal = causal_mask(query.shape[-2], key.shape[-2], query.device), False
        key, value, mask = fronted(key, value, mask, front)
    if kernel == "rbf":
        query, key = as_exponential(query, key)
    elif kernel != "exponential":
        mask = causal_mask(query.shape[-2], key.shape[-2], query.device) if is_causal else mask
        return kernel_attention(query, key, value, kernel=kernel, scale=scale, mask=mask, dropout=dropout), None
    if extra_scores is None:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, scale=scale
        )
        return out, None
    columns = extra_scores.shape[-1]
    if is_causal:
        mask = causal_mask(query.shape[-2], key.shape[-2], query.device)
    if mask is not None:
        mask = F.pad(mask, (0, columns), value=True if mask.dtype == torch.bool else 0.0)
    out = F.scaled_dot_product_attention(
        *with_columns(query, key, value, extra_scores, scale), attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return out[..., :-columns], out[..., -columns:]


def fronted(
    key: Tensor, value: Tensor, mask: Tensor | None, front: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Put keys and values (B, H_kv, F, K) that every query sees before the backbone's own."""
    front_key, front_value = (repeat_heads(x.to(key.dtype), key.shape[1]) for x in front)
    if mask is not None:
        mask = F.pad(mask, (front_key.shape[-2], 0), value=True if mask.dtype == torch.bool else 0.0)
    return torch.cat([front_key, key], dim=-2), torch.cat([front_value, value], dim=-2), mask


def with_columns(
    query: Tensor, key: Tensor, value: Tensor, extra_scores: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query (.., N, K+X), key and value (.., M+X, K+X) whose last X keys score ``extra_scores``."""
    columns, width = extra_scores.shape[-1], query.shape[-1]
    lowest = torch.finfo(query.dtype).min / 4
    aimed = (extra_scores.to(query.dtype) / scale).clamp(lowest, -lowest)
    unit = F.pad(torch.eye(columns, dtype=key.dtype, device=key.device), (width, 0))
    unit = unit.expand(*key.shape[:-2], columns, width + columns)

    def widened(x: Tensor) -> Tensor:
        return torch.cat([F.pad(x, (0, columns)), unit], dim=-2)

    return torch.cat([query, aimed], dim=-1), widened(key), widened(value)
