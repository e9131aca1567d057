"""Masks and positions that allow for rows in front of the text.

Shapes: B batch, N text tokens, P rows in front of the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretoken.attention import causal_mask
from foretoken.errors import BackboneError


@dataclass(frozen=True)
class PrefixMask:
    """Rows that stand in the hidden states before the text, where masks do not allow for them yet.

    Attributes:
        row_mask: (B, P) bool, True where a document has a row.
        text_mask: (B, N) mask of the text as the user gave it, or None.
        memo: masks that were extended in this pass, by identity.
    """

    row_mask: Tensor
    text_mask: Tensor | None
    memo: dict[int, tuple[Tensor | None, Tensor | None]]


def with_positions(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Count ``position_ids`` from the first token that is not padding on, where none are given.

    What a text's distance from its prefix is must not depend on the side of the padding. Distances within the text
    stay as they are, also where tokens in its midst are masked.
    """
    mask = kwargs.get("attention_mask")
    if kwargs.get("position_ids") is not None or not isinstance(mask, Tensor) or mask.dim() != 2:
        return kwargs
    tokens = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
    cache, length = kwargs.get("past_key_values"), tokens.shape[1]
    if mask.shape[1] != length + (0 if cache is None else int(cache.get_seq_length())):
        return kwargs
    start = mask.bool().int().argmax(dim=1, keepdim=True)
    positions = (torch.arange(mask.shape[1], device=mask.device) - start).clamp_min(0)
    return {**kwargs, "position_ids": positions[:, -length:]}


def rows_without_positions(size: int, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Return the positions and the mask of (B, P) rows that run by themselves: all at position 0, no window."""
    seen = causal_mask(rows, rows, device)
    positions = torch.zeros(size, rows, dtype=torch.long, device=device)
    return {"position_ids": positions, "attention_mask": seen[None, None]}


def extend_mask(mask: Tensor, row_mask: Tensor, text_mask: Tensor | None = None) -> Tensor:
    """Put the rows' (B, P) mask in front of a (B, N) mask, or of a (B, 1, N, N) mask in both directions.

    In four dimensions a row sees what ``text_mask`` (B, N) shows, or without one what any text token sees.

    Raises:
        BackboneError: the mask has another number of dimensions.
    """
    if mask.dim() == 2:
        return torch.cat([row_mask.to(mask.dtype), mask], dim=1)
    if mask.dim() != 4:
        raise BackboneError(
            f"an attention mask of shape {tuple(mask.shape)} cannot be extended; pass one of shape (batch, tokens)"
        )
    mask = mask.expand(row_mask.shape[0], *mask.shape[1:])
    if text_mask is not None:
        best = as_mask(text_mask.bool(), mask.dtype)[:, None, None].expand(-1, mask.shape[1], -1, -1)
    else:
        best = mask.amax(dim=-2, keepdim=True) if mask.dtype != torch.bool else mask.any(dim=-2, keepdim=True)
    queries = torch.cat([best.expand(-1, -1, row_mask.shape[1], -1), mask], dim=-2)
    front = as_mask(row_mask, mask.dtype)[:, None, None].expand(-1, queries.shape[1], queries.shape[2], -1)
    return torch.cat([front, queries], dim=-1)


def as_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bool mask in the type of another: bool, or numbers to add to the scores."""
    if dtype == torch.bool:
        return visible
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def extend_text_mask(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Extend ``attention_mask``; without one, make one only where some rows are hidden."""
    mask = kwargs.get("attention_mask")
    if mask is None:
        tokens = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    return {**kwargs, "attention_mask": extend_mask(mask, row_mask)}


def extend_late_mask(mask: Tensor | None, rows: PrefixMask, *, keys: int, dtype: torch.dtype) -> Tensor | None:
    """Extend the finished mask of one attention with ``keys`` = P + N keys, once per pass for the layers that share it.

    Args:
        mask: broadcastable to (B, 1, N, N), or None where everything is seen.
        rows: the rows in front.
        keys: P + N.
        dtype: the type of a mask that must be made because there was none.
    """
    known = rows.memo.get(id(mask))
    if known is None or known[0] is not mask:
        known = rows.memo[id(mask)] = (mask, _extended_late(mask, rows, keys, dtype))
    return known[1]


def _extended_late(mask: Tensor | None, rows: PrefixMask, keys: int, dtype: torch.dtype) -> Tensor | None:
    if mask is not None:
        queries = keys - rows.row_mask.shape[1]
        return extend_mask(mask.expand(-1, -1, queries, -1), rows.row_mask, rows.text_mask)
    if bool(rows.row_mask.all()):
        return None
    text = rows.row_mask.new_ones(rows.row_mask.shape[0], keys - rows.row_mask.shape[1])
    return as_mask(torch.cat([rows.row_mask, text], dim=1), dtype)[:, None, None]
