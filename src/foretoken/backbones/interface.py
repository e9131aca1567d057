"""Attention of the families that dispatch through transformers' own AttentionInterface.

An implementation name such as ``sdpa`` becomes ``foretoken_sdpa``: modules without a branch go on exactly as before,
modules with one go through :func:`foretoken.attention.attend`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from foretoken.attention import attend
from foretoken.backbones.base import Branch

MARK = "foretoken_"


def branch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    wrapped: str,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention function in transformers' calling convention, which asks the module's branch for score columns."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    branch: Branch | None = getattr(module, "foretoken", None)
    columns = None if branch is None else branch.scores(query, scale)
    if branch is None or columns is None:
        if is_causal is not None:
            kwargs["is_causal"] = is_causal
        return implementation(module, wrapped)(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out, probabilities = attend(
        query,
        key,
        value,
        scale=scale,
        mask=attention_mask,
        is_causal=bool(causal) and attention_mask is None and query.shape[2] > 1,
        extra_scores=columns,
        dropout=dropout,
    )
    out = branch.combine(out, probabilities, query).transpose(1, 2).contiguous()
    return out, own_weights(query, key, columns, scale, attention_mask) if wrapped == "eager" else None


def own_weights(query: Tensor, key: Tensor, columns: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Return the (B, H, N, M) weights of the own keys, which eager attention gives back: it sums one-hot values."""
    one_hot = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
    weights, _ = attend(query, key, one_hot, scale=scale, mask=mask, extra_scores=columns, engine="reference")
    return weights


def implementation(module: nn.Module, name: str) -> Callable[..., Any]:
    """Return transformers' attention function of this name; ``eager`` lives in the model's own file."""
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[name]


def attach_interface(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Switch the model to the implementation that asks branches."""
    config: Any = body.config
    before = config._attn_implementation or "sdpa"
    if before.startswith(MARK):  # another model with the same config object switched it
        return
    masks = AttentionMaskInterface()
    AttentionInterface.register(MARK + before, partial(branch_attention, wrapped=before))
    AttentionMaskInterface.register(MARK + before, masks[before if before in masks else "sdpa"])
    config._attn_implementation = MARK + before


def detach_interface(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Switch back."""
    config: Any = body.config
    config._attn_implementation = config._attn_implementation.removeprefix(MARK)
