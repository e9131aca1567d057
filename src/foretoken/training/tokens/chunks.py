"""Long documents in chunks, which end at the end of a sentence where possible, and overlap."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from foretoken.training.tokens.batches import PaddingCollator, TableRow, of_documents

_LATEST = 4  # a chunk ends at a sentence's end in its last quarter, if there is one
_ENDS = tuple(".!?\n\u3002\uff01\uff1f\u0964\u061f\u010a")  # the last: a line's end, as byte-level tokenizers write it
_AT_ONCE = {"cpu": 4096}  # tokens of a forward pass of several chunks
_MORE_AT_ONCE = 65_536  # the same on an accelerator
_END_TOKENS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, frozenset[int]]] = WeakKeyDictionary()


def sentence_ends(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the tokens that end a sentence, by their last character."""
    known = _END_TOKENS.get(tokenizer)
    if known is None or known[0] != len(tokenizer):
        ends = frozenset(number for token, number in tokenizer.get_vocab().items() if token.endswith(_ENDS))
        known = _END_TOKENS[tokenizer] = (len(tokenizer), ends)
    return known[1]


def spans(ids: Sequence[int], size: int, overlap: int, ends: Set[int] = frozenset()) -> list[tuple[int, int]]:
    """Return begin and end of every chunk of a sequence of tokens.

    A chunk ends after the last of the tokens ``ends`` in its last quarter, and the next one begins with the first
    sentence within ``overlap`` tokens before that; without such tokens, chunks have the full length.

    >>> spans(range(10), 4, 1)
    [(0, 4), (3, 7), (6, 10)]
    >>> spans([5, 5, 5, 0, 5, 5, 5, 5, 5], 5, 1, {0})
    [(0, 4), (3, 8), (7, 9)]
    """
    stops = [place + 1 for place, token in enumerate(ids) if token in ends]  # behind each sentence
    rows, begin, length = [], 0, len(ids)
    while length - begin > size:
        end = begin + size
        last = bisect_right(stops, end) - 1
        if last >= 0 and stops[last] >= max(begin + overlap + 1, end - size // _LATEST):
            end = stops[last]
        rows.append((begin, end))
        first = bisect_left(stops, end - overlap)
        begin = stops[first] if first < len(stops) and stops[first] < end else end - overlap
    return [*rows, (begin, length)]


@dataclass(frozen=True)
class ChunkCollator:
    """Make one batch of the chunks of several documents; ``owner`` is the document of each chunk.

    Attributes:
        padding: the collator that pads the chunks.
        always: give ``owner`` even if every document has one chunk.
    """

    padding: PaddingCollator
    always: bool = False

    def __call__(self, rows: Sequence[TableRow]) -> dict[str, Tensor]:
        """Return the inputs of the model [S, N], ``owner`` [S], and labels [B] and offsets [B, C] if any."""
        chunks = [[dict(chunk) for chunk in row["sequences"]] for row in rows]
        batch = self.padding([chunk for row in chunks for chunk in row])
        if self.always or any(len(row) > 1 for row in chunks):
            counts = torch.tensor([len(row) for row in chunks])
            batch["owner"] = torch.arange(len(rows)).repeat_interleave(counts)
        return batch | of_documents(rows)


@dataclass(frozen=True)
class DrawnChunks:
    """Pass some chunks of each document to a collator, drawn anew in every epoch, in their order.

    Attributes:
        collate: the collator.
        at_most: the most chunks of a document.
        seed: the seed of the draws, which also depend on epoch and document.
        epoch: returns the number of the epoch.
    """

    collate: Callable[..., Any]
    at_most: int
    seed: int
    epoch: Callable[[], int]

    def __call__(self, rows: Sequence[TableRow]) -> Any:
        """Return a batch of the drawn chunks."""
        return self.collate([self._drawn(row) for row in rows])

    def _drawn(self, row: TableRow) -> TableRow:
        chunks = row["sequences"]
        if len(chunks) <= self.at_most:
            return row
        key = f"{self.seed} {self.epoch()} {len(chunks)} {chunks[0]['input_ids']}"
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        drawn = torch.randperm(len(chunks), generator=generator)[: self.at_most].sort().values
        return {**row, "sequences": [chunks[number] for number in drawn.tolist()]}


def tokens_at_once(device: torch.device) -> int:
    """Return the default number of tokens, padding included, of a forward pass."""
    return _AT_ONCE.get(device.type, _MORE_AT_ONCE)


def rows_at_once(inputs: Mapping[str, Tensor]) -> int:
    """Return the number of rows of a forward pass, so that memory does not grow with the document."""
    ids = inputs["input_ids"]
    return max(1, tokens_at_once(ids.device) // ids.shape[1])


def documents_of(inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Divide a batch of chunks between documents into batches that fit one forward pass; one document may need more."""
    if "owner" not in inputs:
        return [inputs]
    counts = torch.bincount(inputs["owner"]).tolist()
    rows = rows_at_once(inputs)
    cuts, begin, held = [], 0, 0
    for document, count in enumerate([*counts, rows + 1]):
        if held and held + count > rows:
            cuts.append((begin, document))
            begin, held = document, 0
        held += count
    return [_part(inputs, counts, *part) for part in cuts]


def _part(inputs: dict[str, Tensor], counts: Sequence[int], begin: int, end: int) -> dict[str, Tensor]:
    """Return the batch of the documents from ``begin`` to ``end``, without padding that they do not need."""
    first, chunks = sum(counts[:begin]), sum(counts[begin:end])
    longest = int(inputs["attention_mask"][first : first + chunks].sum(dim=1).max())
    batch = {}
    for name, value in inputs.items():
        if len(value) == len(counts):  # a row for each document; or each has one chunk, which is the same
            batch[name] = value[begin:end]
        else:
            rows = value[first : first + chunks]
            batch[name] = rows[:, :longest] if rows.dim() > 1 else rows
    batch["owner"] = batch["owner"] - begin
    return batch
