"""Score columns of several methods and adapters in one softmax, for a batch of documents.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foretoken.attention import ExtraColumns, Mask, Weighting, attend, repeat_heads
from foretoken.attention.kernels import kernel_attention
from foretoken.attention.rotary import unrotated
from foretoken.methods.base import ScoreColumns
from foretoken.tuner.forward.plan import Group


@dataclass(frozen=True)
class Rotation:
    """How one attention rotates its queries, and in which documents a position-free prefix undoes that.

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
        documents = None if self.documents is None else group.take(self.documents)
        if self.cosine.shape[0] == 1:
            return replace(self, documents=documents)
        return Rotation(group.take(self.cosine), group.take(self.sine), documents)


def scored_query(query: Tensor, rotation: Rotation | None) -> Tensor:
    """Return the queries that a prefix is scored with: a position-free one with queries that are not rotated."""
    return query if rotation is None else rotation.undone(query)


class BatchColumns(ABC):
    """Score columns of one softmax: as :class:`foretoken.methods.base.ScoreColumns`, for a whole batch."""

    @property
    def outside_softmax(self) -> bool:
        """Whether ``combine`` is given the attention without these columns."""
        return False

    @property
    def own_softmax(self) -> bool:
        """Whether the columns have a softmax of their own."""
        return False

    @abstractmethod
    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, X)."""

    @abstractmethod
    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Attention output (B, H, N, K) and the columns' probabilities (B, H, N, X) -> new output."""

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return a (B, N, D) vector to add after the output projection, or None."""
        return None

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return keys and values (B, H_kv, X, K) instead, where that is all there is to the columns; else None."""
        return None


@dataclass(frozen=True)
class AdapterColumns(BatchColumns):
    """The columns of one adapter, in the documents that use it."""

    group: Group
    columns: ScoreColumns
    rotation: Rotation | None = None

    @property
    def outside_softmax(self) -> bool:
        """Whether the adapter's columns stay outside the softmax of the others."""
        return self.columns.outside_softmax

    @property
    def own_softmax(self) -> bool:
        """Whether the adapter's columns have a softmax of their own."""
        return self.columns.own_softmax

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, X); -inf for the documents of other adapters, 0 in a softmax that they ignore."""
        own = self.columns.scores(self.group.take(scored_query(query, self.rotation)), scale)
        if self.group.index is None:
            return own
        unused = 0.0 if self.own_softmax else float("-inf")
        hidden = query.new_full((*query.shape[:-1], self.columns.num_columns), unused)
        return self.group.put(hidden, own)

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Let the adapter use the probabilities of its columns."""
        take = self.group.take
        return self.group.put(out, self.columns.combine(take(out), take(probabilities), take(query)))

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return the adapter's (B, N, D) vector, zero for the documents of other adapters."""
        vector = self.columns.after_projection(self.group.take(probabilities), self.group.take(query))
        if vector is None or self.group.index is None:
            return vector
        return self.group.put(vector.new_zeros(query.shape[0], *vector.shape[1:]), vector)

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return the adapter's keys where every document sees them as they are."""
        if self.group.index is not None or self.rotation is not None:
            return None
        return self.columns.keys(query, documents)

    def alone(self) -> AdapterColumns:
        """Return the columns for a batch of the adapter's own documents."""
        rotation = None if self.rotation is None else self.rotation.of(self.group)
        return AdapterColumns(replace(self.group, index=None), self.columns, rotation)


@dataclass(frozen=True)
class PrefixKeys(BatchColumns):
    """The keys and values of a prefix of hidden states: columns that every query sees, or an attention of their own.

    Attributes:
        key: (B or 1, H_kv, P, K).
        value: (B or 1, H_kv, P, K).
        mask: bool, broadcastable to (B, 1, N, P), False where a query does not see a key; None for none such.
        rotation: of the queries, undone where the prefix is position-free.
    """

    key: Tensor
    value: Tensor
    mask: Tensor | None
    rotation: Rotation | None = None

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, P)."""
        key = repeat_heads(self.key.to(query.dtype), query.shape[1])
        scores = scored_query(query, self.rotation) @ key.transpose(-1, -2) * scale
        return scores if self.mask is None else scores.masked_fill(~self.mask, float("-inf"))

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Add ``p V``."""
        return out + probabilities.to(out.dtype) @ repeat_heads(self.value.to(query.dtype), query.shape[1])

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return the keys where every document sees them as they are."""
        if self.mask is not None or self.rotation is not None:
            return None
        return self.key.expand(documents, -1, -1, -1), self.value.expand(documents, -1, -1, -1)

    def attended(self, query: Tensor, *, kernel: str, scale: float, dropout: float) -> Tensor:
        """Return the attention to the prefix alone: (B, H, N, K)."""
        key, value = (repeat_heads(x.to(query.dtype), query.shape[1]) for x in (self.key, self.value))
        query = scored_query(query, self.rotation)
        return kernel_attention(query, key, value, kernel=kernel, scale=scale, mask=self.mask, dropout=dropout)

    def of(self, group: Group) -> PrefixKeys:
        """Return the prefix of one group's documents."""
        mask = None if self.mask is None else group.take(self.mask)
        rotation = None if self.rotation is None else self.rotation.of(group)
        return PrefixKeys(group.take(self.key), group.take(self.value), mask, rotation)


@dataclass(frozen=True)
class LambdaColumn(BatchColumns):
    """The whole prefix as one column, whose probability is the softmax's own lambda (Li et al. 2023, eq. 6)."""

    prefix: PrefixKeys
    scale: float

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """Return the logarithm of the prefix's summed exponentials: (B, H, N, 1)."""
        return self.prefix.scores(query, scale).logsumexp(dim=-1, keepdim=True)

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Return ``(1 - lambda) f + lambda Kern_prefix``."""
        own = self.prefix.attended(query, kernel="exponential", scale=self.scale, dropout=0.0)
        return out + probabilities.to(out.dtype) * own


def attend_columns(
    columns: Sequence[BatchColumns],
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    scale: float,
    mask: Mask,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention with the columns in its softmax, and a (B, N, D) vector for after W_o or None."""
    documents = mask.num_documents(query)
    keys = [one.keys(query, documents) for one in columns]
    pairs = [pair for pair in keys if pair is not None]  # cheaper than scores: an engine sees them as more keys
    apart = [one for one in columns if one.own_softmax]
    scored = [one for one, pair in zip(columns, keys, strict=True) if pair is None and not one.own_softmax]
    inside = [one for one in scored if not one.outside_softmax]
    outside = [one for one in scored if one.outside_softmax]
    scores_inside = [one.scores(query, scale) for one in inside]
    scores_outside = [one.scores(query, scale) for one in outside]
    extra = ExtraColumns(
        scores=torch.cat([*scores_inside, *scores_outside], dim=-1) if scored else None,
        num_outside=sum(scores.shape[-1] for scores in scores_outside),
        prefix_kv=joined(pairs),
    )
    out, p = attend(query, key, value, scale=scale, mask=mask, columns=extra, weighting=weighting)
    out, after = combined(inside, scores_inside, out, p, query)
    width = sum(scores.shape[-1] for scores in scores_inside)
    out, more = combined(outside, scores_outside, out, None if p is None else p[..., width:], query)
    for one in apart:
        out = one.combine(out, one.scores(query, scale).softmax(dim=-1), query)
    return out, added(after, more)


def joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """Join several keys and values."""
    if len(pairs) < 2:
        return pairs[0] if pairs else None
    return torch.cat([key for key, _ in pairs], dim=2), torch.cat([value for _, value in pairs], dim=2)


def combined(
    columns: Sequence[BatchColumns], scores: list[Tensor], out: Tensor, probabilities: Tensor | None, query: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Let each of the columns use its own probabilities; sum what they add after the projection."""
    start, after = 0, None
    for one, own_scores in zip(columns, scores, strict=True):
        assert probabilities is not None
        own = probabilities[..., start : start + own_scores.shape[-1]]
        start += own_scores.shape[-1]
        after = added(after, one.after_projection(own, query))
        out = one.combine(out, own, query)
    return out, after


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two vectors, either of which may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b
