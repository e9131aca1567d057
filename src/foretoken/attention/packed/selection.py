"""Some documents of a run, padded: what adapters that not all documents use are given of it.

Shapes: B documents, b of them chosen, N tokens of the longest one chosen with its prefix, S tokens of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretoken.attention.packed.layout import PackedBatch


@dataclass(frozen=True, eq=False)
class Selection:
    """Documents of runs of one length.

    Attributes:
        places: (b, N) where their tokens stand in the run.
        real: which of the (b N) are no padding; None: all.
    """

    places: Tensor
    real: Tensor | None

    def take(self, x: Tensor) -> Tensor:
        """(1, S, ...) -> (b, N, ...)."""
        return x[0].index_select(0, self.places.flatten()).unflatten(0, self.places.shape)

    def put(self, x: Tensor, part: Tensor) -> Tensor:
        """Return the run (1, S, ...) with the documents replaced by (b, N, ...); their padding is left out."""
        places, values = self.places.flatten(), part.flatten(0, 1)
        if self.real is not None:
            places, values = places[self.real], values[self.real]
        return x.index_copy(1, places, values[None])


def is_run(batch: PackedBatch, x: Tensor) -> bool:
    """Tell whether (., ...) is a run of tokens and not the padded batch; of one document the two are alike."""
    return x.shape[0] == 1 and batch.size > 1


def select(batch: PackedBatch, index: Tensor, length: int) -> Selection:
    """Return the documents (b,) ``index`` of runs of ``length`` tokens, the same object for all layers."""
    return batch.remembered(lambda: find(batch, index, length), "selection", index, length)


def find(batch: PackedBatch, index: Tensor, length: int) -> Selection:
    """Do :func:`select`.

    A run may have no prefixes, or longer ones than the batch says, or one token of each document (1, B, ...): its
    length tells.
    """
    device = index.device
    if length == batch.size != len(batch.index):
        return Selection(index[:, None], None)
    before = (length - len(batch.index)) // batch.size
    chosen = [batch.documents[number] for number in index.tolist()]
    starts = torch.tensor([part.start for part in chosen], device=device)[:, None] + batch.size * before
    sizes = torch.tensor([part.stop - part.start for part in chosen], device=device)[:, None]
    steps = torch.arange(max((part.stop - part.start for part in chosen), default=0), device=device)
    real = steps < sizes
    text = torch.where(real, starts + steps, 0)
    prefix = index[:, None] * before + torch.arange(before, device=device)
    is_real = torch.cat([torch.ones_like(prefix, dtype=torch.bool), real], dim=1).flatten()
    places = torch.cat([prefix, text], dim=1)
    return Selection(places, None if bool(is_real.all()) else is_real.nonzero()[:, 0])
