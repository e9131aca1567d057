"""Parameters of many adapters of one form: one vector each, and those of each document of a batch.

Shapes: A adapters that there is room for, T numbers of one adapter, b documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Layout = Mapping[str, tuple[int, tuple[int, ...]]]  # by name: where a parameter begins in the vector, and its shape


def layout_of(shapes: Mapping[str, Sequence[int]]) -> Layout:
    """Return where parameters of these shapes lie, one after another.

    >>> layout_of({"weight": (2, 3), "bias": (2,)})
    {'weight': (0, (2, 3)), 'bias': (6, (2,))}
    """
    found, start = {}, 0
    for name, shape in shapes.items():
        found[name] = start, tuple(shape)
        start += prod(shape)
    return found


def size_of(layout: Layout) -> int:
    """Return T."""
    return sum(prod(shape) for _, shape in layout.values())


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

    @property
    def is_shared(self) -> bool:
        """Whether all documents have the same adapter."""
        return len(set(self.slots)) == 1

    def named(self, layout: Layout) -> dict[str, Tensor]:
        """Return (b, ...) parameters by name, views of the vectors."""
        return {
            name: self.values[:, start : start + prod(shape)].unflatten(1, shape) if shape else self.values[:, start]
            for name, (start, shape) in layout.items()
        }

    def spread(self, times: int) -> RowParameters:
        """Return the parameters of ``times`` sequences for each document, as beams are."""
        if times == 1:
            return self
        slots = tuple(slot for slot in self.slots for _ in range(times))
        values = self.values if self.is_shared else self.values.repeat_interleave(times, dim=0)
        return RowParameters(values, slots, self.version)

    def of(self, number: int) -> RowParameters:
        """Return the parameters of one document."""
        values = self.values if self.is_shared else self.values[number : number + 1]
        return RowParameters(values, self.slots[number : number + 1], self.version)


class RowStore:
    """The parameters of adapters of one form: a row of one tensor for each, grown by doubling, freed rows used again.

    Attributes:
        layout: where each parameter lies in a row.
        values: (A, T).
    """

    def __init__(self, layout: Layout, *, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = layout
        self.values = torch.zeros(0, size_of(layout), dtype=dtype, device=device)
        self.free: list[int] = []
        self.version = 0

    def add(self, state: Mapping[str, Tensor]) -> int:
        """Write an adapter's parameters into a row, and return the row's number."""
        if not self.free:
            self.grow()
        slot = self.free[-1]
        with torch.no_grad():
            row = self.values[slot]
            for name, (start, shape) in self.layout.items():
                row[start : start + prod(shape)].copy_(state[name].reshape(-1))
        self.free.pop()
        self.version += 1
        return slot

    def grow(self) -> None:
        """Make room for twice as many."""
        count = self.values.shape[0]
        more = max(1, count)
        trained = self.values.requires_grad
        fresh = self.values.new_zeros(more, self.values.shape[1])
        self.values = torch.cat([self.values.detach(), fresh]).requires_grad_(trained)
        self.free.extend(range(count + more - 1, count - 1, -1))

    def remove(self, slot: int) -> None:
        """Free a row."""
        self.free.append(slot)
        self.version += 1

    def state(self, slot: int, values: Tensor | None = None) -> dict[str, Tensor]:
        """Return the parameters of a row, or that row of other ``values`` (A, T), such as gradients."""
        row = (self.values if values is None else values)[slot].detach()
        return {
            name: row[start : start + prod(shape)].reshape(shape).clone()
            for name, (start, shape) in self.layout.items()
        }

    def gather(self, slots: Sequence[int], dtype: torch.dtype) -> RowParameters:
        """Return the parameters of the documents whose adapters are in these rows."""
        shared = len(set(slots)) == 1
        wanted = self.values[slots[0] : slots[0] + 1] if shared else self.values[torch.tensor(slots)]
        return RowParameters(wanted.to(dtype), tuple(slots), self.version)
