"""Score columns of several methods and adapters in one softmax, for a batch of documents.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention import ExtraColumns, Mask, Weighting, attend, repeat_heads
from foretoken.attention.kernels import kernel_attention
from foretoken.attention.rotary import unrotated
from foretoken.methods.sites import ScoreColumns
from foretoken.tuner.forward.plan import Group

Pair = TypeVar("Pair")


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

    def of_document(self, number: int, place: slice, *, prefix_length: int) -> Rotation:
        """Return the rotation of one document's prefix and of its tokens, which stand at this place of its row."""
        row, start = (slice(number, number + 1) if len(self.cosine) > 1 else slice(None)), prefix_length

        def own(x: Tensor) -> Tensor:
            text = x[row, start + place.start : start + place.stop]
            return torch.cat([x[row, :start], text], dim=1) if start else text

        return Rotation(own(self.cosine), own(self.sine))

    def of(self, group: Group) -> Rotation:
        """Return the rotation of one group's documents."""
        documents = None if self.documents is None else group.take(self.documents)
        if self.cosine.shape[0] == 1:
            return replace(self, documents=documents)
        return Rotation(group.take(self.cosine), group.take(self.sine), documents)


def scored_query(query: Tensor, rotation: Rotation | None) -> Tensor:
    """Return the queries that a prefix is scored with: a position-free one with queries that are not rotated."""
    return query if rotation is None else rotation.undone(query)


class Keys(NamedTuple):
    """Keys and values of columns.

    Attributes:
        key: (B, H_kv, X, K).
        value: (B, H_kv, X, K).
        mask: (B, 1, 1, X) bool, False for those that a document lacks; None where none does.
    """

    key: Tensor
    value: Tensor
    mask: Tensor | None = None


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

    def keys(self, query: Tensor, documents: int) -> Keys | None:
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
        own = self.alone_scores(query, scale)
        if self.group.index is None:
            return own
        unused = 0.0 if self.own_softmax else float("-inf")
        hidden = query.new_full((*query.shape[:-1], self.columns.num_columns), unused)
        return self.group.put(hidden, own)

    def alone_scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (b, H, N, X) of the adapter's own documents."""
        return self.columns.scores(self.group.take(scored_query(query, self.rotation)), scale)

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

    def keys(self, query: Tensor, documents: int) -> Keys | None:
        """Return the adapter's keys where every document sees them as they are."""
        if self.group.index is not None or self.rotation is not None:
            return None
        pair = self.columns.keys(query, documents)
        return None if pair is None else Keys(*pair)

    def own_keys(self, query: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values (b, H_kv, X, K) of the adapter's own documents."""
        if self.group.index is None or self.rotation is not None:
            return None
        return self.columns.keys(query, len(self.group.index))

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

    def keys(self, query: Tensor, documents: int) -> Keys | None:
        """Return the keys where queries see them as they are, and all queries of a document the same ones."""
        if self.rotation is not None or (self.mask is not None and self.mask.shape[2] > 1):
            return None
        return Keys(self.key.expand(documents, -1, -1, -1), self.value.expand(documents, -1, -1, -1), self.mask)

    def attended(
        self, query: Tensor, *, kernel: str, scale: float, dropout: float, projection: Tensor | None = None
    ) -> Tensor:
        """Return the attention to the prefix alone: (B, H, N, K)."""
        key, value = (repeat_heads(x.to(query.dtype), query.shape[1]) for x in (self.key, self.value))
        query = scored_query(query, self.rotation)
        return kernel_attention(
            query, key, value, kernel=kernel, scale=scale, mask=self.mask, dropout=dropout, projection=projection
        )

    def of(self, group: Group) -> PrefixKeys:
        """Return the prefix of one group's documents."""
        mask = None if self.mask is None else group.take(self.mask)
        rotation = None if self.rotation is None else self.rotation.of(group)
        return PrefixKeys(group.take(self.key), group.take(self.value), mask, rotation)


@dataclass(frozen=True)
class SharedColumns(BatchColumns):
    """Columns of several adapters in the same places, as no document has two of them.

    Attributes:
        parts: the adapters' columns, all inside the softmax, all outside of it, or all with one of their own.
    """

    parts: tuple[AdapterColumns, ...]

    @property
    def outside_softmax(self) -> bool:
        """Whether the columns stay outside the softmax of the others."""
        return self.parts[0].outside_softmax

    @property
    def own_softmax(self) -> bool:
        """Whether the columns have a softmax of their own."""
        return self.parts[0].own_softmax

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, X); -inf where a document has fewer, 0 in a softmax that it ignores."""
        width = max(part.columns.num_columns for part in self.parts)
        scores = query.new_full((*query.shape[:-1], width), 0.0 if self.own_softmax else float("-inf"))
        for part in self.parts:
            own = part.alone_scores(query, scale)
            missing = width - own.shape[-1]
            scores = part.group.put(scores, F.pad(own, (0, missing), value=float("-inf")) if missing else own)
        return scores

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Let each adapter use the probabilities of its columns."""
        for part in self.parts:
            out = part.combine(out, probabilities[..., : part.columns.num_columns], query)
        return out

    def after_projection(self, probabilities: Tensor, query: Tensor) -> Tensor | None:
        """Return the adapters' (B, N, D) vectors, zero for other documents."""
        vector: Tensor | None = None
        for part in self.parts:
            take = part.group.take
            own = part.columns.after_projection(take(probabilities[..., : part.columns.num_columns]), take(query))
            if own is not None:
                vector = own.new_zeros(query.shape[0], *own.shape[1:]) if vector is None else vector
                vector = part.group.put(vector, own)
        return vector


def in_shared_places(columns: Sequence[AdapterColumns], query: Tensor) -> list[BatchColumns]:
    """Let columns of adapters that no document has together stand in the same places.

    Args:
        columns: of all adapters at work, several of one adapter in a stack.
        query: (B, H, N, K).
    """
    apart: list[BatchColumns] = [one for one in columns if one.group.index is None]
    own = [(one, one.own_keys(query)) for one in columns if one.group.index is not None]
    with_keys = by_place([(one, pair) for one, pair in own if pair is not None])
    apart += [shared_keys(place, query.shape[0]) for place in with_keys]
    scored = [one for one, pair in own if pair is None]
    for kind in (False, True):
        for is_outside in (False, True):
            alike = [(one, None) for one in scored if (one.own_softmax, one.outside_softmax) == (kind, is_outside)]
            apart += [SharedColumns(tuple(one for one, _ in place)) for place in by_place(alike)]
    return apart


def by_place(columns: Sequence[tuple[AdapterColumns, Pair]]) -> list[list[tuple[AdapterColumns, Pair]]]:
    """Put the first columns of each adapter together, the second ones, and so on."""
    counts: Counter[str] = Counter()
    places: list[list[tuple[AdapterColumns, Pair]]] = []
    for one, pair in columns:
        number = counts[one.group.adapter]
        counts[one.group.adapter] += 1
        if number == len(places):
            places.append([])
        places[number].append((one, pair))
    return places


def shared_keys(columns: Sequence[tuple[AdapterColumns, tuple[Tensor, Tensor]]], documents: int) -> PrefixKeys:
    """Return the keys and values of adapters that no document has together, padded to the longest."""
    one, (key, value) = columns[0]
    if len(columns) == 1 and one.group.is_whole:
        return PrefixKeys(key, value, None)
    width = max(key.shape[2] for _, (key, _) in columns)
    keys, values = (x.new_zeros(documents, x.shape[1], width, x.shape[3]) for x in (key, value))
    mask = torch.zeros(documents, 1, 1, width, dtype=torch.bool, device=key.device)
    for one, (key, value) in columns:
        missing = (0, 0, 0, width - key.shape[2])
        keys, values = one.group.put(keys, F.pad(key, missing)), one.group.put(values, F.pad(value, missing))
        here = torch.arange(width, device=key.device) < key.shape[2]
        mask = one.group.put(mask, here.expand(len(key), 1, 1, width))
    return PrefixKeys(keys, values, None if bool(mask.all()) else mask)


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
    prefix = joined(pairs)
    extra = ExtraColumns(
        scores=torch.cat([*scores_inside, *scores_outside], dim=-1) if scored else None,
        num_outside=sum(scores.shape[-1] for scores in scores_outside),
        prefix_kv=None if prefix is None else (prefix.key, prefix.value),
        prefix_mask=None if prefix is None else prefix.mask,
    )
    out, p = attend(query, key, value, scale=scale, mask=mask, columns=extra, weighting=weighting)
    out, after = combined(inside, scores_inside, out, p, query)
    width = sum(scores.shape[-1] for scores in scores_inside)
    out, more = combined(outside, scores_outside, out, None if p is None else p[..., width:], query)
    for one in apart:
        out = one.combine(out, one.scores(query, scale).softmax(dim=-1), query)
    return out, added(after, more)


def joined(parts: Sequence[Keys]) -> Keys | None:
    """Join several keys and values."""
    if len(parts) < 2:
        return parts[0] if parts else None
    key, value = torch.cat([part.key for part in parts], dim=2), torch.cat([part.value for part in parts], dim=2)
    if all(part.mask is None for part in parts):
        return Keys(key, value)
    masks = [
        part.key.new_ones(len(part.key), 1, 1, part.key.shape[2]).bool() if part.mask is None else part.mask
        for part in parts
    ]
    return Keys(key, value, torch.cat(masks, dim=-1))


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
