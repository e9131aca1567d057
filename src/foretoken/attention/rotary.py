"""The inverse of rotary positions.

Shapes: B batch, H heads, N queries, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unrotated(query: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate queries back to position 0: ``R(-i) R(i) q = q``, for rotations of the halves of a head.

    Where a family scales its rotations (YaRN), cosine and sine hold the factor, and the result is the family's own
    query at position 0: q times the factor.

    Args:
        query: (B, H, N, K), rotated.
        cosine: (B or 1, N, K) of the rotation.
        sine: (B or 1, N, K) of the rotation.

    >>> angle = torch.tensor([0.0, 0.5])[None, :, None].expand(1, 2, 2)  # N = 2, K = 2
    >>> query = torch.tensor([[[[3.0, 4.0], [3.0 * 0.8776 - 4.0 * 0.4794, 4.0 * 0.8776 + 3.0 * 0.4794]]]])
    >>> unrotated(query, angle.cos(), angle.sin()).round(decimals=3)
    tensor([[[[3., 4.],
              [3., 4.]]]])
    """
    cosine, sine = cosine[:, None].to(query.dtype), sine[:, None].to(query.dtype)
    first, second = query.chunk(2, dim=-1)
    return (query * cosine - torch.cat([-second, first], dim=-1) * sine) / torch.hypot(cosine, sine)
