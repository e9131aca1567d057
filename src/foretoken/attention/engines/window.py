"""Sliding window + global keys (Longformer). Engines ``block``, ``gather-sdpa``, ``flex`` and ``reference``.

Shapes: B batch, H heads, N queries, K head width, X extra columns, G global keys, F keys in front; packed: T tokens of
all documents, P rows in front of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention.columns import merged
from foretoken.attention.engines import dense
from foretoken.attention.engines.cpu_band import attend_documents

if TYPE_CHECKING:
    from foretoken.attention.attend import Packed, Window

BLOCK = 128


def band_mask(window: Window, queries: int) -> Tensor:
    """Return the (B, N, N) bool mask of the definition: window and global keys, without masked keys."""
    position = torch.arange(queries, device=window.key_mask.device)
    near = (position[:, None] - position[None]).abs() <= window.one_sided
    return (near[None] | is_global(window)[:, None]) & window.key_mask[:, None]


def is_global(window: Window) -> Tensor:
    """Return (B, M) bool, True at the global keys."""
    marks = torch.zeros_like(window.key_mask, dtype=torch.int32)
    return marks.scatter_add(1, window.global_index, window.global_mask.int()) > 0


def attend_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: Window,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    kept: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Dense attention under the mask that defines the window; the test's yardstick. Masked queries get zero."""
    real = window.key_mask[:, None, :, None]
    own = torch.eye(query.shape[-2], dtype=torch.bool, device=query.device)
    mask = band_mask(window, query.shape[-2]) | (own & ~window.key_mask[..., None])
    out, extra = dense.attend_reference(
        query,
        key,
        value,
        scale=scale,
        mask=mask[:, None],
        is_causal=False,
        extra_scores=extra_scores,
        kernel=kernel,
        dropout=dropout,
        kept=kept,
    )
    return out * real, None if extra is None else extra * real


def attend_gather(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: Window,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """Blocks of queries against [global keys | the block's band], one fused SDPA call. Masked queries get zero.

    Portable: plain autograd, any device and dtype. Memory grows with N (2 w + BLOCK) / BLOCK.
    """
    size = query.shape[-2]
    block = min(BLOCK, size)
    blocks = -(-size // block)
    pad = blocks * block - size
    heads = query.shape[1]
    key, value = dense.repeat_heads(key, heads), dense.repeat_heads(value, heads)

    def by_block(x: Tensor) -> Tensor:  # (B, H, N, *) -> (B nb, H, block, *)
        return F.pad(x, (0, 0, 0, pad)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)

    reach = min(window.one_sided, size)
    keys = with_globals(bands(key, block, reach, pad), gathered(key, window.global_index), blocks)
    values = with_globals(bands(value, block, reach, pad), gathered(value, window.global_index), blocks)
    mask = block_mask(window, block, reach, pad, blocks)
    out, extra = dense.attend_sdpa(
        by_block(query),
        keys,
        values,
        scale=scale,
        mask=mask,
        is_causal=False,
        extra_scores=None if extra_scores is None else by_block(extra_scores),
        kernel=kernel,
        dropout=dropout,
    )
    real = window.key_mask[:, None, :, None]

    def in_order(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :size] * real

    return in_order(out), None if extra is None else in_order(extra)


def bands(x: Tensor, block: int, reach: int, pad: int) -> Tensor:
    """(B, H, N, K) -> (B, nb, H, block + 2 reach, K): each block's keys with its neighbours."""
    padded = F.pad(x, (0, 0, reach, reach + pad))
    return padded.unfold(2, block + 2 * reach, block).permute(0, 2, 1, 4, 3)


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """(B, H, N, K) and (B, G) -> (B, H, G, K)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))


def with_globals(band: Tensor, globals_: Tensor, blocks: int) -> Tensor:
    """Put the global keys before every block's band: (B nb, H, G + band, K)."""
    front = globals_[:, None].expand(-1, blocks, -1, -1, -1)
    return torch.cat([front, band], dim=3).flatten(0, 1)


def block_mask(window: Window, block: int, reach: int, pad: int, blocks: int) -> Tensor:
    """Return (B nb, 1, block, G + band) bool. A masked query sees itself, so that no row is empty."""
    device = window.key_mask.device
    local = F.pad(window.key_mask & ~is_global(window), (reach, reach + pad)).unfold(1, block + 2 * reach, block)
    query = torch.arange(block, device=device)[:, None]
    key = torch.arange(block + 2 * reach, device=device)[None] - reach
    near = (query - key).abs() <= window.one_sided
    own = query == key
    empty = ~F.pad(window.key_mask, (0, pad)).unflatten(1, (blocks, block))
    band = (near & local[:, :, None]) | (own & empty[..., None])
    front = window.global_mask[:, None, None].expand(-1, blocks, block, -1)
    return torch.cat([front, band], dim=-1).flatten(0, 1)[:, None]


def attend_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: Window,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    kept: int = 0,
    front: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Block after block in the CPU's cache: :mod:`foretoken.attention.engines.cpu_band`. Masked queries get zero."""
    size, heads = query.shape[:2]
    if front is not None:
        expanded = (dense.repeat_heads(x, heads).expand(size, -1, -1, -1) for x in front)
        front = next(expanded), next(expanded)
    columns = None if extra_scores is None else extra_scores.transpose(0, 1).flatten(1, 2)
    out, extra = attend_documents(
        *(run_of(dense.repeat_heads(x, heads)) for x in (query, key, value)),
        scale=scale,
        documents=window.documents,
        one_sided=window.one_sided,
        front=front,
        extra_scores=columns,
        kept=kept,
    )
    out = out.unflatten(0, (size, -1)).transpose(1, 2)
    if extra is None:
        return out, None
    return out, extra.unflatten(1, (size, -1)).transpose(0, 1) * window.key_mask[:, None, :, None]


def attend_packed_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    packed: Packed,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    kept: int = 0,
    front: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Do the same for documents without padding: (1, H, T, K)."""
    columns = None if extra_scores is None else extra_scores[0]
    out, extra = attend_documents(
        *(run_of(x) for x in (query, key, value)),
        scale=scale,
        documents=packed.stream.documents,
        one_sided=packed.one_sided,
        front=with_rows(packed, front),
        extra_scores=columns,
        kept=kept,
    )
    return out.transpose(0, 1)[None], None if extra is None else extra[None]


def with_rows(packed: Packed, front: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    """Return the keys and values (B, H, P + F, K) that all of a document's tokens see."""
    if front is None:
        return packed.rows
    size = packed.stream.size
    key, value = (x.expand(size, -1, -1, -1) for x in front)
    if packed.rows is None:
        return key, value
    return torch.cat([packed.rows[0], key], dim=2), torch.cat([packed.rows[1], value], dim=2)


def run_of(x: Tensor) -> Tensor:
    """(B, H, N, K) -> (B N, H, K); no copy where the heads are views of one projection."""
    return x.transpose(1, 2).flatten(0, 1)


def attend_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: Window,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    kept: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Run PyTorch's FlexAttention: :mod:`foretoken.attention.engines.flex`. Masked queries get zero."""
    from foretoken.attention.engines import flex

    f, lse = flex.attend_flex(query, key, value, scale=scale, window=window, kernel=kernel, dropout=dropout)
    real = window.key_mask[:, None, :]
    out, extra = merged(f, lse.masked_fill(~real, 0.0), extra_scores, kept)
    return out, None if extra is None else extra * real[..., None]


def attend_packed_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    packed: Packed,
    extra_scores: Tensor | None,
    kernel: str,
    dropout: float,
    kept: int = 0,
    front: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Do the same for documents without padding; the rows are keys in front of the run that ask nothing themselves."""
    from foretoken.attention.engines import flex
    from foretoken.attention.engines.flex_masks import Documents

    if not query.shape[2]:  # a batch without a token: FlexAttention wants one
        return query, extra_scores
    stream, before = packed.stream, with_rows(packed, front)
    if front is not None:
        stream = stream.with_longer_prefix(front[0].shape[2])
    rows = stream.front
    if before is not None:
        key, value = (
            torch.cat([part.transpose(0, 1).flatten(1, 2)[None].to(x.dtype), x], dim=2)
            for part, x in zip(before, (key, value), strict=True)
        )
        query = F.pad(query, (0, 0, rows, 0))
    documents = Documents(*stream.places, packed.one_sided)
    f, lse = flex.attend_flex(query, key, value, scale=scale, documents=documents, kernel=kernel, dropout=dropout)
    f, lse = f[:, :, rows:], lse[:, :, rows:]
    return merged(f, lse.masked_fill(lse == float("-inf"), 0.0), extra_scores, kept)
