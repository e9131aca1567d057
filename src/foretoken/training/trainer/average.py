"""Means over documents of losses that come as means over micro-batches of unequal sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class DocumentMean:
    """A running mean over documents; it stays on its device, as ``.item()`` would wait for it at every step.

    >>> mean = DocumentMean()
    >>> mean.add(torch.tensor(1.0), documents=3)
    >>> mean.add(torch.tensor(5.0), documents=1)
    >>> mean.take()
    2.0
    """

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # of losses, of documents

    def add(self, loss: Tensor, *, documents: int) -> None:
        """Count the mean loss of so many documents; one that is not finite is left out, as the Trainer does."""
        loss = loss.detach().double() if loss.device.type != "mps" else loss.detach()
        count = torch.isfinite(loss) * documents
        sums = torch.stack([torch.nan_to_num(loss, posinf=0.0, neginf=0.0) * count, count.to(loss.dtype)])
        self.sums = sums if self.sums is None else self.sums + sums

    def take(self, gather: Callable[[Tensor], Tensor] | None = None) -> float | None:
        """Return the mean, over all processes where ``gather`` is given, and begin anew; None without documents."""
        if self.sums is None:
            return None
        total, count = (self.sums if gather is None else gather(self.sums[None]).sum(0)).tolist()
        self.sums = None
        return total / count if count else None
