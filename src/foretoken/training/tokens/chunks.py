"""Documents longer than the model, read in chunks whose logits are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foretoken.training.tokens.encode import PaddingCollator, TableRow, of_documents


def spans(length: int, size: int, overlap: int, at_most: int | None = None) -> list[tuple[int, int]]:
    """Return begin and end of every chunk of a run of tokens; the last one may be shorter.

    >>> spans(10, 4, 1)
    [(0, 4), (3, 7), (6, 10)]
    >>> spans(3, 4, 1)
    [(0, 3)]
    """
    step = size - overlap
    count = 1 + max(0, -(-(length - size) // step))
    kept = count if at_most is None else min(count, at_most)
    return [(index * step, min(index * step + size, length)) for index in range(kept)]


def pooled(logits: Tensor, owner: Tensor, pool: str) -> Tensor:
    """Return the mean or maximum over each document's chunks: (S, C) and document numbers (S,) -> (B, C).

    >>> logits, owner = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> pooled(logits, owner, "mean").tolist(), pooled(logits, owner, "max").tolist()
    ([[2.0], [5.0]], [[3.0], [5.0]])
    """
    documents = int(owner[-1]) + 1
    index = owner[:, None].expand_as(logits)
    start = logits.new_zeros(documents, logits.shape[1])
    return start.scatter_reduce(0, index, logits, "mean" if pool == "mean" else "amax", include_self=False)


@dataclass(frozen=True)
class ChunkCollator:
    """Make one batch of the sequences of several rows; ``owner`` says whose each is."""

    padding: PaddingCollator

    def __call__(self, rows: Sequence[TableRow]) -> dict[str, Tensor]:
        """Return what the model reads, [S, N], ``owner`` [S], and labels [B] and offsets [B, C] where there are any."""
        sequences = [dict(sequence) for row in rows for sequence in row["sequences"]]
        owner = [number for number, row in enumerate(rows) for _ in row["sequences"]]
        return self.padding(sequences) | {"owner": torch.tensor(owner)} | of_documents(rows)
