"""Sliding window + global keys (Longformer). Engines ``gather-sdpa`` and ``reference``.

Shapes: B batch, H heads, N queries, K head width, X extra columns, G global keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention.columns import ExtraColumns
from foretoken.attention.engines import dense
from foretoken.attention.kernels import Weighting
from foretoken.attention.masks import DenseMask, Window
from foretoken.machine.tracing import is_exported

BLOCK = 128


def band_mask(window: Window, queries: int) -> Tensor:
    """Return the (B, N, N) bool mask of the definition: window and global keys, without masked keys."""
    position = torch.arange(queries, device=window.key_mask.device)
    near = (position[:, None] - position[None]).abs() <= window.one_sided
    return (near[None] | window.is_global()[:, None]) & window.key_mask[:, None]


def attend_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    columns: ExtraColumns,
    *,
    scale: float,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Dense attention under the mask that defines the window; the test's yardstick. Masked queries get zero."""
    real = window.key_mask[:, None, :, None]
    own = torch.eye(query.shape[-2], dtype=torch.bool, device=query.device)
    mask = DenseMask((band_mask(window, query.shape[-2]) | (own & ~window.key_mask[..., None]))[:, None])
    out, extra = dense.attend_reference(query, key, value, mask, columns, scale=scale, weighting=weighting)
    return out * real, None if extra is None else extra * real


def attend_gather(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    columns: ExtraColumns,
    *,
    scale: float,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Blocks of queries against [global keys | the block's band], one fused SDPA call. Masked queries get zero.

    Portable: plain autograd, any device and dtype. Memory grows with N (2 w + BLOCK) / BLOCK.
    """
    size = query.shape[-2]
    # a graph is made for every length: the sizes of blocks and bands must not depend on it
    block, most = (BLOCK, window.one_sided) if is_exported() else (min(BLOCK, size), size)
    blocks = (size + block - 1) // block  # of a number above 0: ONNX divides towards zero
    pad = blocks * block - size
    heads = query.shape[1]
    key, value = dense.repeat_heads(key, heads), dense.repeat_heads(value, heads)

    def by_block(x: Tensor) -> Tensor:  # (B, H, N, *) -> (B nb, H, block, *)
        return F.pad(x, (0, 0, 0, pad)).unflatten(2, (blocks, block)).transpose(1, 2).flatten(0, 1)

    reach = min(window.one_sided, most)
    keys = with_globals(bands(key, block, reach, pad), window.global_keys(key), blocks)
    values = with_globals(bands(value, block, reach, pad), window.global_keys(value), blocks)
    mask = DenseMask(block_mask(window, block, reach, pad, blocks))
    out, extra = dense.attend_sdpa(
        by_block(query), keys, values, mask, columns.map(by_block), scale=scale, weighting=weighting
    )
    real = window.key_mask[:, None, :, None]

    def in_order(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :size] * real

    return in_order(out), None if extra is None else in_order(extra)


def bands(x: Tensor, block: int, reach: int, pad: int) -> Tensor:
    """(B, H, N, K) -> (B, nb, H, block + 2 reach, K): each block's keys with its neighbours."""
    padded = F.pad(x, (0, 0, reach, reach + pad))
    return padded.unfold(2, block + 2 * reach, block).permute(0, 2, 1, 4, 3)


def with_globals(band: Tensor, globals_: Tensor, blocks: int) -> Tensor:
    """Put the global keys before every block's band: (B nb, H, G + band, K)."""
    before = globals_[:, None].expand(-1, blocks, -1, -1, -1)
    return torch.cat([before, band], dim=3).flatten(0, 1)


def block_mask(window: Window, block: int, reach: int, pad: int, blocks: int) -> Tensor:
    """Return (B nb, 1, block, G + band) bool. A masked query sees itself, so that its softmax is defined."""
    device = window.key_mask.device
    local = F.pad(window.key_mask & ~window.is_global(), (reach, reach + pad)).unfold(1, block + 2 * reach, block)
    query = torch.arange(block, device=device)[:, None]
    key = torch.arange(block + 2 * reach, device=device)[None] - reach
    near = (query - key).abs() <= window.one_sided
    own = query == key
    empty = ~F.pad(window.key_mask, (0, pad)).unflatten(1, (blocks, block))
    band = (near & local[:, :, None]) | (own & empty[..., None])
    before = window.global_mask[:, None, None].expand(-1, blocks, block, -1)
    return torch.cat([before, band], dim=-1).flatten(0, 1)[:, None]
