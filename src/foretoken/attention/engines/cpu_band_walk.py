"""The blocks of queries of documents in turn, and the buffers that hold what the present one sees.

Shapes: T tokens of all documents, H heads, K head width, X extra columns, F keys in front of a document, B documents, n
queries of a block, C columns of its scores: [extra columns | keys in front | global keys | the block's band].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import one_hot

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
        most = max((len(document.global_index) for document in band.documents), default=0)
        heads, width = key.shape[1:]
        most += self.num_extra + self.num_front + BLOCK + 2 * band.one_sided
        self.keys, self.values = key.new_zeros(2, heads, most, width)
        self.room = key.new_empty(heads * BLOCK * most)

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
        if many := len(document.global_index):
            for buffer, part in ((self.keys, self.key), (self.values, self.value)):
                buffer[:, end : end + many] = part[document.global_index].transpose(0, 1)
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
