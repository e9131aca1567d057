"""FlexAttention with its log-sum-exp, uncompiled and compiled.

Shapes: B batch, H heads, N queries, K head width.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MODULE = "torch.nn.attention.flex_attention"  # imported late: the import is slow, and most programs do not need it
GRAPHS = 64  # a model in training and evaluation needs several; beyond the default of 8 PyTorch stops compiling


@cache
def compiled(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return FlexAttention with its log-sum-exp as one graph, compiled once for all lengths."""
    function = with_lse(importlib.import_module(MODULE))
    has_limit = "recompile_limit" in inspect.signature(torch.compile).parameters  # torch 2.13 has it, 2.6 does not
    options: dict[str, Any] = {"recompile_limit": GRAPHS} if has_limit else {}
    return torch.compile(function, backend=backend, dynamic=True, fullgraph=True, **options)


def with_lse(module: ModuleType) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function (q, k, v, mask) -> (f, lse) on ``torch.nn.attention.flex_attention``.

    torch returns the log-sum-exp with ``return_aux`` since 2.9, with ``return_lse`` before.
    """
    attention = module.flex_attention
    request = module.AuxRequest(lse=True) if hasattr(module, "AuxRequest") else None

    def by_request(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> tuple[Tensor, Tensor]:
        grouped = query.shape[1] != key.shape[1]
        f, aux = attention(query, key, value, block_mask=mask, scale=1.0, enable_gqa=grouped, return_aux=request)
        return f, aux.lse

    def by_flag(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> tuple[Tensor, Tensor]:
        grouped = query.shape[1] != key.shape[1]
        return attention(query, key, value, block_mask=mask, scale=1.0, enable_gqa=grouped, return_lse=True)

    return by_flag if request is None else by_request
