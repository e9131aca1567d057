"""FlexAttention on a CPU, without a compiler, and the backward pass that it lacks there: for tests.

Imported late, as ``torch.compiler.disable`` imports PyTorch's compiler, which takes seconds.

Shapes: B batch, H heads, H_kv key heads, N queries, M keys, K head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from foretoken.attention.engines.dense import repeat_heads
from foretoken.attention.engines.flex_kernel import compiled


@torch.compiler.disable
def run_on_cpu(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> tuple[Tensor, Tensor]:
    """Call the reference path, with a backward pass of ours where gradients are needed."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return OnCpu.apply(query, key, value, mask)
    return compiled("eager")(query.detach(), key.detach(), value.detach(), mask)


class OnCpu(torch.autograd.Function):
    """FlexAttention's forward pass on a CPU, and a backward pass with the whole score matrix."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: BlockMask
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
        wide_key, wide_value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        grad_f = grad_f.to(lse.dtype)
        weights = torch.exp(query @ wide_key.mT - lse[..., None]).masked_fill(~seen(ctx.mask, query, key), 0.0)
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
    return create_mask(mask.mask_mod, query.shape[0], 1, query.shape[2], key.shape[2], device=str(query.device))
