"""One call of one attention, as a value.

Shapes: B batch, H heads, H_kv key heads, N queries, M keys, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foretoken.attention.kernels import SOFTMAX, Weighting
from foretoken.attention.masks import DenseMask, Mask

EVERYTHING = DenseMask()


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of one attention: what a backbone computes by itself, and what adapters add to.

    Attributes:
        query: (B, H, N, K).
        key: (B, H_kv, M, K); H_kv divides H (grouped-query attention). None where the mask computes the keys itself
            (:class:`foretoken.attention.Projected`), and only there.
        value: (B, H_kv, M, K); None as for ``key``.
        scale: the factor on the scores, usually ``K ** -0.5``.
        mask: which keys a query sees.
        weighting: how scores become weights.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    mask: Mask = EVERYTHING
    weighting: Weighting = SOFTMAX
