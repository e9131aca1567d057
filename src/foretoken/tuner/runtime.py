"""Which rows of the current batch belong to which adapter, during one forward pass and its recomputation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import AdapterError, did_you_mean

BASE = "__base__"  # peft's name for "no adapter" in adapter_names


@dataclass(frozen=True)
class Group:
    """Documents of a batch that use one adapter.

    Attributes:
        adapter: its name.
        index: (b,) positions of the documents in the batch; None for all of them.
        offset: where the adapter's rows begin among the rows in front of the text.
        num_rows: how many rows it has.
    """

    adapter: str
    index: Tensor | None
    offset: int
    num_rows: int

    def take(self, x: Tensor) -> Tensor:
        """Return this group's documents of (B, ...)."""
        return x if self.index is None else x.index_select(0, self.index)

    def put(self, x: Tensor, part: Tensor) -> Tensor:
        """Return (B, ...) with this group's documents replaced."""
        return part if self.index is None else x.index_copy(0, self.index, part.to(x.dtype))


@dataclass(frozen=True)
class Plan:
    """One forward pass: its groups, the rows in front of the text, and the token ids."""

    groups: tuple[Group, ...]
    num_rows: int
    batch_size: int
    device: torch.device
    token_ids: Tensor | None = None

    def row_mask(self) -> Tensor:
        """Return (B, P) bool, True where a document has a row (adapters of one batch may have different P)."""
        mask = torch.zeros(self.batch_size, self.num_rows, dtype=torch.bool, device=self.device)
        for group in self.groups:
            part = group.take(mask).clone()
            part[:, group.offset : group.offset + group.num_rows] = True
            mask = group.put(mask, part)
        return mask


class Runtime:
    """The plan of the pass that is under way; shared by all sites of one model."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.names: Sequence[str] | None = None

    @contextmanager
    def using(self, plan: Plan | None) -> Iterator[None]:
        """Work under another plan for a while."""
        before, self.plan = self.plan, plan
        try:
            yield
        finally:
            self.plan = before


class Replay:
    """A gradient-checkpointing function that recomputes a layer under the plan of its own forward pass."""

    def __init__(self, checkpoint: Callable[..., Any], runtime: Runtime) -> None:
        self.checkpoint = checkpoint
        self.runtime = runtime

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Checkpoint ``function``, remembering today's plan."""
        return self.checkpoint(partial(self.run, self.runtime.plan, function), *args, **kwargs)

    def run(self, plan: Plan | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function`` under the plan."""
        with self.runtime.using(plan):
            return function(*args, **kwargs)


def make_groups(
    names: Sequence[str] | None,
    active: Sequence[str],
    num_rows: Callable[[str], int],
    batch_size: int,
    device: torch.device,
) -> tuple[Group, ...]:
    """Return the groups of a batch: every active adapter for all documents, or one adapter per document.

    Raises:
        AdapterError: the number of names does not fit the batch.
    """
    if names is None:
        groups, offset = [], 0
        for name in active:
            groups.append(Group(name, None, offset, num_rows(name)))
            offset += groups[-1].num_rows
        return tuple(groups)
    names = spread(names, batch_size)
    return tuple(
        Group(name, index_of(name, names, device), 0, num_rows(name)) for name in dict.fromkeys(names) if name != BASE
    )


def index_of(name: str, names: Sequence[str], device: torch.device) -> Tensor:
    """Return the positions at which ``name`` stands."""
    return torch.tensor([i for i, other in enumerate(names) if other == name], device=device)


def spread(names: Sequence[str], batch_size: int) -> list[str]:
    """Repeat each document's name for its rows in the body (multiple choice: one row per choice).

    >>> spread(["a", "b"], 4)
    ['a', 'a', 'b', 'b']
    """
    times, rest = divmod(batch_size, len(names))
    if rest or not times:
        raise AdapterError(
            f"adapter_names has {len(names)} names for a batch of {batch_size}; give one name per document"
        )
    return [name for name in names for _ in range(times)]


def check_names(names: Sequence[str], known: Collection[str]) -> None:
    """Raise AdapterError for a name that is not an adapter."""
    unknown = sorted({name for name in names if name != BASE and name not in known})
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise AdapterError(
            f"adapter_names names {unknown[0]!r}, which is not loaded{hint}; loaded: {', '.join(known)} (or {BASE!r})"
        )
