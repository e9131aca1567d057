"""Score columns of several methods and adapters in one softmax.

Shapes: B batch, N queries, M keys, P rows in front of the text, H heads, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foretoken.attention import ExtraColumns, Mask, Weighting, attend, repeat_heads
from foretoken.methods.base import ScoreColumns
from foretoken.tuner.attention.rotation import Rotation, met_by
from foretoken.tuner.forward.plan import Group


class Columns(Protocol):
    """Score columns of one softmax, and what their probabilities do; as in ``ScoreColumns``, for a whole batch."""

    @property
    def outside_softmax(self) -> bool:
        """Tell whether ``combine`` wants the attention as it is without these columns."""

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, X)."""

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Attention output and the columns' probabilities -> new output."""

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return a (B, N, D) vector for after the output projection, or None."""

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values (B, H_kv, X, K) instead, where that is all there is to them; else None."""


@dataclass(frozen=True)
class Part:
    """One member of an adapter at one attention, with the documents that use it."""

    group: Group
    branch: ScoreColumns
    rotation: Rotation | None = None  # that is undone in the queries that are scored

    @property
    def outside_softmax(self) -> bool:
        """Tell whether the branch wants the attention as it is without its columns."""
        return self.branch.outside_softmax

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, X); -inf for the documents of other adapters."""
        part = self.branch.scores(self.group.take(met_by(query, self.rotation)), scale)
        if self.group.index is None:
            return part
        hidden = query.new_full((*query.shape[:-1], self.branch.num_columns), float("-inf"))
        return self.group.put(hidden, part)

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Let the branch use the probabilities of its columns."""
        take = self.group.take
        return self.group.put(out, self.branch.combine(take(out), take(probabilities), take(query)))

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return the branch's (B, N, D) vector, zero for the documents of other adapters."""
        vector = self.branch.after_projection(self.group.take(probabilities), self.group.take(query))
        if vector is None or self.group.index is None:
            return vector
        return self.group.put(vector.new_zeros(query.shape[0], *vector.shape[1:]), vector)

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return the branch's keys where every document sees them as they are."""
        if self.group.index is not None or self.rotation is not None:
            return None
        return self.branch.keys(query, documents)


@dataclass(frozen=True)
class RowPart:
    """The keys and values of rows that ran before the text, as columns that every query sees."""

    key: Tensor  # (B or 1, H_kv, P, K)
    value: Tensor
    hidden: Tensor | None  # (B, P) bool, True where a document lacks a row
    rotation: Rotation | None = None
    outside_softmax = False

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, P)."""
        key = repeat_heads(self.key.to(query.dtype), query.shape[1])
        scores = met_by(query, self.rotation) @ key.transpose(-1, -2) * scale
        if self.hidden is None:
            return scores
        return scores.masked_fill(self.hidden[:, None, None], float("-inf"))

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Add ``p V``."""
        return out + probabilities.to(out.dtype) @ repeat_heads(self.value.to(query.dtype), query.shape[1])

    def after_projection(self, probabilities: Tensor, query: Tensor) -> None:
        """Rows add nothing after the projection."""

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return the rows' keys where every document sees them as they are."""
        if self.hidden is not None or self.rotation is not None:
            return None
        return self.key.expand(documents, -1, -1, -1), self.value.expand(documents, -1, -1, -1)


def attend_columns(
    parts: Sequence[Columns],
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    scale: float,
    mask: Mask,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the parts' columns in its softmax, and a (B, N, D) vector for after W_o or None."""
    documents = mask.num_documents(query)
    keys = [part.keys(query, documents) for part in parts]
    plain = [pair for pair in keys if pair is not None]
    others = [part for part, pair in zip(parts, keys, strict=True) if pair is None]
    sharing = [part for part in others if not part.outside_softmax]
    keeping = [part for part in others if part.outside_softmax]
    shared = [part.scores(query, scale) for part in sharing]
    kept = [part.scores(query, scale) for part in keeping]
    extra = ExtraColumns(
        scores=torch.cat([*shared, *kept], dim=-1) if others else None,
        num_outside=sum(column.shape[-1] for column in kept),
        prefix_kv=in_front(plain),
    )
    out, p = attend(query, key, value, scale=scale, mask=mask, columns=extra, weighting=weighting)
    out, after = combined(sharing, shared, out, p, query)
    width = sum(column.shape[-1] for column in shared)
    out, more = combined(keeping, kept, out, None if p is None else p[..., width:], query)
    return out, added(after, more)


def in_front(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """Join the keys and values of several parts."""
    if len(pairs) < 2:
        return pairs[0] if pairs else None
    return torch.cat([key for key, _ in pairs], dim=2), torch.cat([value for _, value in pairs], dim=2)


def combined(
    parts: Sequence[Columns], columns: list[Tensor], out: Tensor, probabilities: Tensor | None, query: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Let each part use the probabilities of its own columns; sum what they add after the projection."""
    start, after = 0, None
    for part, column in zip(parts, columns, strict=True):
        assert probabilities is not None
        own = probabilities[..., start : start + column.shape[-1]]
        start += column.shape[-1]
        after = added(after, part.after_projection(own, query))
        out = part.combine(out, own, query)
    return out, after


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two vectors, either of which may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b
