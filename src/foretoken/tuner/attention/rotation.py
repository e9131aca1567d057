"""Queries as a position-free prefix meets them: without their rotation.

Shapes: B batch, H heads, N queries, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foretoken.attention.rotary import unrotated
from foretoken.tuner.forward.plan import Group


@dataclass(frozen=True)
class Rotation:
    """How one attention rotates its queries, and in which documents that is undone.

    Attributes:
        cosine: (B or 1, N, K).
        sine: (B or 1, N, K).
        documents: (B,) bool; None for all of them.
    """

    cosine: Tensor
    sine: Tensor
    documents: Tensor | None = None

    def undone(self, query: Tensor) -> Tensor:
        """(B, H, N, K) -> (B, H, N, K)."""
        free = unrotated(query, self.cosine, self.sine)
        return free if self.documents is None else torch.where(self.documents[:, None, None, None], free, query)

    def of(self, group: Group) -> Rotation:
        """Return the rotation of one group's documents."""
        if self.cosine.shape[0] > 1:
            return replace(self, cosine=group.take(self.cosine), sine=group.take(self.sine)).narrowed(group)
        return self.narrowed(group)

    def narrowed(self, group: Group) -> Rotation:
        """Keep the group's documents among those that it is undone in."""
        return self if self.documents is None else replace(self, documents=group.take(self.documents))


def met_by(query: Tensor, rotation: Rotation | None) -> Tensor:
    """Return the queries that a prefix meets: as they are, or without their rotation."""
    return query if rotation is None else rotation.undone(query)
