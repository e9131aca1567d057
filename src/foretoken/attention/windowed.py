"""Sliding window + global keys (Longformer). Engines ``gather-sdpa`` and ``reference``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention import dense

if TYPE_CHECKING:
    from foretoken.attention.contract import Window

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
