"""Sliding window + global keys on a CPU: block after block, in buffers that are used again. Engine ``block``.

A block of queries sees [extra columns | keys in front | global keys | the block's band], gathered into one buffer: one
batched matrix product, one softmax, one product with the values, all in the cache. The backward pass computes the
probabilities again, so that nothing of size N x window is kept.

Shapes: T tokens of all documents, H heads, K head width, X extra columns, F keys in front of a document, B documents,
C columns of one block's scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot

from foretoken.attention.columns import divided, joined, kept_probabilities
from foretoken.attention.packed import Document

BLOCK = 96  # queries; measured on two cores: 64 to 128 are alike in float32, 96 and more in bfloat16


@dataclass(frozen=True, eq=False)
class Band:
    """Who sees whom: within ``one_sided`` neighbours of the same document."""

    documents: Sequence[Document]
    one_sided: int
    with_lse: bool = False


@dataclass(frozen=True)
class Block:
    """One block: queries start..stop, keys first..last, ``extra`` columns and ``ahead`` other ones before the band."""

    number: int
    document: Document
    start: int
    stop: int
    first: int
    last: int
    ahead: int

    @property
    def columns(self) -> int:
        """C."""
        return self.ahead + self.last - self.first


class Walk:
    """The blocks of all documents in turn, and the buffers that hold what the present one sees."""

    def __init__(
        self,
        band: Band,
        key: Tensor,
        value: Tensor,
        front: tuple[Tensor, Tensor] | None,
        columns: Tensor | None,
        scale: float,
    ) -> None:
        self.band, self.key, self.value, self.front, self.extra = band, key, value, front, columns
        self.scale = scale
        self.num_extra = 0 if columns is None else columns.shape[-1]
        self.num_front = 0 if front is None else front[0].shape[-2]
        most = max((len(document.everywhere) for document in band.documents), default=0)
        heads, width = key.shape[1:]
        self.most = self.num_extra + self.num_front + most + BLOCK + 2 * band.one_sided
        self.keys, self.values = key.new_zeros(2, heads, self.most, width)
        self.room = key.new_empty(heads * BLOCK * self.most)

    def __iter__(self) -> Iterator[Block]:
        reach = self.band.one_sided
        for number, document in enumerate(self.band.documents):
            ahead = self.fill_ahead(number, document)
            for start in range(document.start, document.stop, BLOCK):
                stop = min(document.stop, start + BLOCK)
                first, last = max(document.start, start - reach), min(document.stop, stop + reach)
                block = Block(number, document, start, stop, first, last, ahead)
                self.keys[:, ahead : block.columns] = self.key[first:last].transpose(0, 1)
                self.values[:, ahead : block.columns] = self.value[first:last].transpose(0, 1)
                yield block

    def fill_ahead(self, number: int, document: Document) -> int:
        """Fill in what all queries of a document see, behind the extra columns' zeros; return where it ends."""
        end = self.num_extra + self.num_front
        if self.front is not None:
            for buffer, part in zip((self.keys, self.values), self.front, strict=True):
                buffer[:, self.num_extra : end] = part[number]
        if many := len(document.everywhere):
            for buffer, part in ((self.keys, self.key), (self.values, self.value)):
                buffer[:, end : end + many] = part[document.everywhere].transpose(0, 1)
        return end + many

    def scaled(self, query: Tensor, block: Block) -> Tensor:
        """(T, H, K) -> the block's queries (H, n, K), scaled."""
        return query[block.start : block.stop].transpose(0, 1) * self.scale

    def scores(self, queries: Tensor, block: Block) -> Tensor:
        """(H, n, K) scaled queries -> their scores (H, n, C), in the buffer, -inf where nothing is seen."""
        heads, count = queries.shape[:2]
        scores = self.room[: heads * count * block.columns].view(heads, count, block.columns)
        torch.bmm(queries, self.keys[:, : block.columns].transpose(1, 2), out=scores)
        if self.extra is not None:
            scores[:, :, : self.num_extra] += self.extra[:, block.start : block.stop]
        self.hide(scores[:, :, block.ahead :], block)
        return scores

    def hide(self, scores: Tensor, block: Block) -> None:
        """Put -inf where a query of the block does not see a key of its band: (H, n, band)."""
        document, reach, count = block.document, self.band.one_sided, scores.shape[1]
        behind = block.stop - 1 - reach - block.first  # keys that the block's last query no longer sees
        if behind > 0:
            offset = block.start - reach - block.first
            scores[:, :, :behind] += corner(count, behind, offset, scores.dtype, scores.device)
        before = block.last - 1 - reach - block.start  # keys that its first query does not see yet
        if before > 0:
            scores[:, :, -before:] += corner(count, before, None, scores.dtype, scores.device)
        if document.outside is None:
            return
        outside = document.outside[block.first - document.start : block.last - document.start]
        if not bool(outside.any()):
            return
        scores.masked_fill_(outside, float("-inf"))
        if document.masked is not None:  # a masked query sees itself, so that no row is empty
            own = torch.arange(block.start - block.first, block.stop - block.first, device=scores.device)
            masked = document.masked[block.start - document.start : block.stop - document.start]
            scores.masked_fill_(one_hot(own, block.last - block.first).bool() & masked[:, None], 0.0)


@lru_cache(maxsize=64)
def corner(count: int, width: int, offset: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (n, width): -inf at keys left of query i + offset, or without an offset from query i on; else 0."""
    query = torch.arange(count, device=device)[:, None]
    key = torch.arange(width, device=device)[None]
    far = key >= query if offset is None else key < query + offset
    return torch.zeros(count, width, dtype=dtype, device=device).masked_fill_(far, float("-inf"))


class Banded(torch.autograd.Function):
    """Attention of (T, H, K) queries within their documents' bands.

    Returns (T, H, K), the extra columns' probabilities (H, T, X), and the log-sum-exp (H, T) in float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        front_key: Tensor | None,
        front_value: Tensor | None,
        columns: Tensor | None,
        band: Band,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`attend_documents`."""
        ctx.save_for_backward(query, key, value, front_key, front_value, columns)
        ctx.band, ctx.scale = band, scale
        tokens, heads, _ = query.shape
        out = torch.zeros_like(query)
        wide = torch.promote_types(query.dtype, torch.float32)
        # not -inf, where no document is: against a column of -inf there would be no probability
        lse = query.new_zeros((heads, tokens) if band.with_lse else (0,), dtype=wide)
        with torch.autocast(query.device.type, enabled=False):
            walk = Walk(band, key, value, pair(front_key, front_value), columns, scale)
            extra = query.new_zeros(heads, tokens, walk.num_extra)
            for block in walk:
                here = slice(block.start, block.stop)
                scores = walk.scores(walk.scaled(query, block), block)
                highest = scores.amax(dim=-1) if band.with_lse else None
                torch.softmax(scores, dim=-1, out=scores)
                if highest is not None:
                    lse[:, here] = highest.to(wide) - scores.amax(dim=-1).to(wide).log()
                extra[:, here] = scores[:, :, : walk.num_extra]
                out[here] = torch.bmm(scores, walk.values[:, : block.columns]).transpose(0, 1)
        return out, extra, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_extra: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
        """Compute each block's probabilities again, and from them the gradients."""
        query, key, value, front_key, front_value, columns = ctx.saved_tensors
        band, wants = ctx.band, ctx.needs_input_grad
        with torch.autocast(query.device.type, enabled=False):
            walk = Walk(band, key, value, pair(front_key, front_value), columns, ctx.scale)
            sums = Sums(query, key, value, front_key, front_value, columns, wants)
            other = torch.empty_like(walk.room)
            for block in walk:
                here = slice(block.start, block.stop)
                queries = walk.scaled(query, block)
                weights = walk.scores(queries, block)
                torch.softmax(weights, dim=-1, out=weights)
                given = grad_out[here].transpose(0, 1).contiguous()
                until = block.columns if wants[1] or wants[2] else walk.num_extra + walk.num_front
                if wants[2] or wants[4]:
                    sums.to_values(torch.bmm(weights[:, :, :until].transpose(1, 2), given), block, walk)
                grads = other[: weights.numel()].view_as(weights)
                torch.bmm(given, walk.values[:, : block.columns].transpose(1, 2), out=grads)
                if walk.num_extra:
                    grads[:, :, : walk.num_extra] += grad_extra[:, here]
                grads = softmax_backward(grads, weights)
                if band.with_lse:
                    grads.addcmul_(weights, grad_lse[:, here, None].to(grads.dtype))
                if sums.columns is not None:
                    sums.columns[:, here] = grads[:, :, : walk.num_extra]
                if sums.query is not None:
                    product = torch.bmm(grads, walk.keys[:, : block.columns])
                    sums.query[here] = product.mul_(ctx.scale).transpose(0, 1)
                if wants[1] or wants[3]:
                    sums.to_keys(torch.bmm(grads[:, :, :until].transpose(1, 2), queries), block, walk)
        return sums.query, sums.key, sums.value, sums.front_key, sums.front_value, sums.columns, None, None


def pair(key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return both or None."""
    return None if key is None or value is None else (key, value)


class Sums:
    """The gradients of the inputs, summed up block by block; None for inputs that need none."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        front_key: Tensor | None,
        front_value: Tensor | None,
        columns: Tensor | None,
        wants: Sequence[bool],
    ) -> None:
        inputs = (query, key, value, front_key, front_value, columns)
        made = [torch.zeros_like(x) if x is not None and want else None for x, want in zip(inputs, wants, strict=False)]
        self.query, self.key, self.value, self.front_key, self.front_value, self.columns = made

    def to_keys(self, grads: Tensor, block: Block, walk: Walk) -> None:
        """Add the gradients (H, C, K) of one block's keys."""
        self.spread(grads, self.key, self.front_key, block, walk)

    def to_values(self, grads: Tensor, block: Block, walk: Walk) -> None:
        """Add the gradients (H, C, K) of one block's values."""
        self.spread(grads, self.value, self.front_value, block, walk)

    @staticmethod
    def spread(grads: Tensor, own: Tensor | None, front: Tensor | None, block: Block, walk: Walk) -> None:
        """Add one buffer's gradients to where its rows came from."""
        begin, end = walk.num_extra, walk.num_extra + walk.num_front
        if front is not None:
            front[block.number] += grads[:, begin:end]
        if own is None:
            return
        if block.ahead > end:
            own.index_add_(0, block.document.everywhere, grads[:, end : block.ahead].transpose(0, 1))
        own[block.first : block.last] += grads[:, block.ahead : block.columns].transpose(0, 1)


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of the scores: (.., C) each. PyTorch's own kernel is private: it may be missing one day."""
    kernel = getattr(torch, "_softmax_backward_data", None)
    if kernel is None:
        return grad.sub_((grad * weights).sum(dim=-1, keepdim=True)).mul_(weights)
    return kernel(grad, weights, -1, grad.dtype)


def attend_documents(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    documents: Sequence[Document],
    one_sided: int,
    front: tuple[Tensor, Tensor] | None = None,
    extra_scores: Tensor | None = None,
    kept: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Window + global attention of documents that lie one after another in (T, H, K) tensors.

    Args:
        query: (T, H, K).
        key: (T, H, K).
        value: (T, H, K).
        scale: what the scores are multiplied by.
        documents: where they are; tokens of none get zero, as masked ones do.
        one_sided: how many neighbours are seen on either side.
        front: keys and values (B, H, F, K) that all of a document's queries see.
        extra_scores: (H, T, X), already scaled.
        kept: how many of the last columns weigh only.

    Returns:
        out (T, H, K), and the columns' probabilities (H, T, X) or None.
    """
    shared, apart = divided(extra_scores, kept)
    band = Band(documents, one_sided, with_lse=apart is not None)
    front_key, front_value = (None, None) if front is None else (x.to(query.dtype) for x in front)
    columns = None if shared is None else shared.to(query.dtype)
    out, p_shared, lse = Banded.apply(query, key, value, front_key, front_value, columns, band, scale)
    p_kept = None if apart is None else kept_probabilities(lse, apart)
    if any(document.masked is not None for document in documents):
        out = out * real_tokens(documents, query)[:, None, None]
    return out, joined(None if shared is None else p_shared, p_kept)


def real_tokens(documents: Sequence[Document], like: Tensor) -> Tensor:
    """Return (T,): 1 at the documents' real tokens, 0 elsewhere."""
    marks = like.new_zeros(like.shape[0])
    for document in documents:
        inside = marks[document.start : document.stop]
        inside.fill_(1.0) if document.masked is None else inside.copy_(~document.masked)
    return marks
