"""The parameters of each document of a batch, where documents have adapters of their own.

Shapes: T numbers of one adapter, b documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

Layout = Mapping[str, tuple[int, tuple[int, ...]]]  # by name: the start of a parameter in the vector, and its shape


@dataclass(frozen=True, eq=False)
class RowParameters:
    """The parameters of each document's adapter.

    Attributes:
        values: (b, T), or (1, T) where all documents share one adapter.
        slots: the (b,) numbers of the documents' adapters.
        version: changes whenever an adapter is added or removed.
    """

    values: Tensor
    slots: tuple[int, ...]
    version: int = 0

    @cached_property
    def is_shared(self) -> bool:
        """Whether all documents have the same adapter."""
        return len(set(self.slots)) == 1

    def spread(self, times: int) -> RowParameters:
        """Return the parameters for ``times`` sequences of each document, such as beams."""
        if times == 1:
            return self
        slots = tuple(slot for slot in self.slots for _ in range(times))
        values = self.values if self.is_shared else self.values.repeat_interleave(times, dim=0)
        return RowParameters(values, slots, self.version)

    def of(self, number: int) -> RowParameters:
        """Return the parameters of one document."""
        values = self.values if self.is_shared else self.values[number : number + 1]
        return RowParameters(values, self.slots[number : number + 1], self.version)
