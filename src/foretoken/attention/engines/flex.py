"""FlexAttention (Dong et al. 2024) for CUDA: window, dense and packed masks, with the log-sum-exp. Engine ``flex``.

One kernel that PyTorch compiles from a mask written as a function of (batch, head, query, key). Which blocks of 128 by
128 scores are empty is told to it by a ``BlockMask``, made once for a batch and used by all layers (``flex_masks``).

On a CPU the same call runs without a compiler, as the definition with the whole matrix of scores: for tests. Measured
on no GPU so far.

Shapes: B batch, H heads, H_kv key heads, N queries, M keys, K head width, S tokens of a packed stream.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention.engines import dense
from foretoken.attention.engines.flex_masks import Documents, dense_mask, documents_mask, window_mask
from foretoken.errors import ConfigError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from foretoken.attention.attend import Window

MODULE = "torch.nn.attention.flex_attention"  # imported late: it takes a moment, and most do without
NARROWEST = 16  # the least head width of the kernel
GRAPHS = 64  # a model in training and evaluation needs a few; the limit of 8 would end in the uncompiled path


def attend_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    window: Window | None = None,
    documents: Documents | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    kernel: str = "exponential",
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the backbone's own keys, and the logarithm of the sum that it divides by.

    ``f_i = sum_j exp(s_ij - lse_i) v_j`` with ``lse_i = log sum_j exp(s_ij)``, the sums over the keys that i sees.
    Both are differentiable. A query that sees no key gets ``f = 0`` and ``lse = -inf``.

    Args:
        query: (B, H, N, K).
        key: (B, H_kv, M, K); H_kv divides H (grouped-query attention).
        value: (B, H_kv, M, K).
        scale: what the scores are multiplied by, usually ``K ** -0.5``.
        window: sliding-window attention with global keys; a masked query sees no key.
        documents: a packed stream; B = 1, N = M = S.
        key_mask: (B, M) bool, True for a real key. Dense attention only.
        is_causal: query i sees keys 0..i. Dense attention only.
        kernel: ``exponential`` alone.
        dropout: 0 alone.

    Returns:
        f (B, H, N, K) in the type of the query, and lse (B, H, N) in float32, or float64 for a float64 query.

    Raises:
        ConfigError: dropout, another kernel, or more than one kind of mask.

    >>> import torch
    >>> q = k = v = torch.eye(2)[None, None]
    >>> f, lse = attend_flex(q, k, v, scale=1.0, is_causal=True)
    >>> [round(x, 4) for x in (f.sum(-1).flatten().tolist() + lse.flatten().tolist())]
    [1.0, 1.0, 1.0, 1.3133]
    """
    portable = "sdpa" if window is None and documents is None else "gather-sdpa"
    if dropout > 0:
        raise ConfigError(f"engine 'flex' has no dropout of attention weights; got {dropout}: use engine {portable!r}")
    if kernel != "exponential":
        raise ConfigError(f"engine 'flex' computes the exponential kernel; got {kernel!r}: use engine {portable!r}")
    if sum((window is not None, documents is not None, key_mask is not None or is_causal)) > 1:
        raise ConfigError("engine 'flex' takes its mask from one of `window`, `documents`, or `key_mask`/`is_causal`")
    mask: BlockMask | None
    if window is not None:
        mask = window_mask(window)
    elif documents is not None:
        mask = documents_mask(documents)
    else:
        mask = dense_mask(key_mask, query.shape[-2], key.shape[-2], is_causal=is_causal, device=query.device)
    width = query.shape[-1]
    # a scale handed to the kernel would be a number that its graph does not know; Longformer scales its queries as well
    f, lse = run(as_wide(query * scale), as_wide(key), as_wide(value), mask)
    return f[..., :width], lse


def as_wide(x: Tensor) -> Tensor:
    """Pad the width with zeros to a power of two: all that torch 2.6 takes, and what the kernel computes anyhow."""
    width = max(NARROWEST, 1 << (x.shape[-1] - 1).bit_length())
    return F.pad(x, (0, width - x.shape[-1])) if width > x.shape[-1] else x


def run(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask | None) -> tuple[Tensor, Tensor]:
    """Call the kernel; on a CPU, where FlexAttention has no backward, with one of our own."""
    if query.device.type == "cpu":
        return run_on_cpu(query, key, value, mask)
    if torch.compiler.is_compiling():  # within a graph of the caller's
        return with_lse(importlib.import_module(MODULE))(query, key, value, mask)
    return compiled("inductor")(query, key, value, mask)


@torch.compiler.disable
def run_on_cpu(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask | None) -> tuple[Tensor, Tensor]:
    """Call the reference path, which has no backward."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return OnCpu.apply(query, key, value, mask)
    return compiled("eager")(query.detach(), key.detach(), value.detach(), mask)


@cache
def compiled(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return FlexAttention with its log-sum-exp as one graph, compiled once for all lengths."""
    function = with_lse(importlib.import_module(MODULE))
    options: dict[str, Any] = graph_limit(torch.compile)
    return torch.compile(function, backend=backend, dynamic=True, fullgraph=True, **options)


def graph_limit(compiler: Callable[..., Any]) -> dict[str, int]:
    """Return the argument that allows more graphs than the usual 8, where torch has it (2.13 has, 2.6 has not)."""
    return {"recompile_limit": GRAPHS} if "recompile_limit" in inspect.signature(compiler).parameters else {}


def with_lse(module: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function (q, k, v, mask) -> (f, lse) on ``torch.nn.attention.flex_attention``.

    The log-sum-exp is asked for by ``return_aux`` since torch 2.9, by ``return_lse`` before.
    """
    attention = module.flex_attention
    request = module.AuxRequest(lse=True) if hasattr(module, "AuxRequest") else None

    def by_request(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        grouped = query.shape[1] != key.shape[1]
        f, aux = attention(query, key, value, block_mask=mask, scale=1.0, enable_gqa=grouped, return_aux=request)
        return f, aux.lse

    def by_flag(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple[Tensor, Tensor]:
        grouped = query.shape[1] != key.shape[1]
        return attention(query, key, value, block_mask=mask, scale=1.0, enable_gqa=grouped, return_lse=True)

    return by_flag if request is None else by_request


class OnCpu(torch.autograd.Function):
    """FlexAttention's forward on a CPU, and the backward that it has on a GPU alone, with the whole score matrix."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: BlockMask | None
    ) -> tuple[Tensor, Tensor]:
        """Return f and lse."""
        f, lse = compiled("eager")(query.detach(), key.detach(), value.detach(), mask)
        ctx.save_for_backward(query, key, value, f, lse)
        ctx.mask = mask
        return f, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_f: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """``dS = P (dP - <df, f> + dlse)``, P recomputed from lse."""
        query, key, value, f, lse = (x.to(ctx.saved_tensors[-1].dtype) for x in ctx.saved_tensors)
        groups = key.shape[1], query.shape[1] // key.shape[1]
        wide_key, wide_value = dense.repeat_heads(key, query.shape[1]), dense.repeat_heads(value, query.shape[1])
        grad_f = grad_f.to(lse.dtype)
        weights = torch.exp(query @ wide_key.mT - lse[..., None])
        if ctx.mask is not None:
            weights = weights.masked_fill(~seen(ctx.mask, query, key), 0.0)
        rest = grad_lse.to(lse.dtype) - (grad_f * f).sum(dim=-1)
        grad_scores = weights * (grad_f @ wide_value.mT + rest[..., None])
        grads = (
            grad_scores @ wide_key,
            (grad_scores.mT @ query).unflatten(1, groups).sum(dim=2),
            (weights.mT @ grad_f).unflatten(1, groups).sum(dim=2),
        )
        return *(grad.to(x.dtype) for grad, x in zip(grads, ctx.saved_tensors, strict=False)), None


def seen(mask: BlockMask, query: Tensor, key: Tensor) -> Tensor:
    """Return the mask as (B, 1, N, M) bool."""
    from torch.nn.attention.flex_attention import create_mask

    return create_mask(mask.mask_mod, query.shape[0], 1, query.shape[2], key.shape[2], device=str(query.device))
