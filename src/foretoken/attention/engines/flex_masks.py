"""Masks of FlexAttention: who sees whom as a function, and which blocks of scores that leaves.

``create_block_mask`` would write the whole (B, N, M) matrix to find the blocks: 16 documents of 4096 tokens in one
run are 4 GiB. Here each block of 128 tokens is summed up by the interval that it covers, and intervals are compared.
A block that is listed without need costs time; the function still decides about every score in it.

Shapes: B batch, N queries, M keys, G global keys, S tokens of packed documents, C_q and C_k blocks of queries and keys.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention.masks import Window

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Sees: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

BLOCK = 128
NOWHERE = 2**60  # beyond every place on the line
APART = 2**32  # between the places of two documents on one line


@dataclass(frozen=True)
class Documents:
    """Documents one after another in a single sequence.

    A query sees a key of its own document that is at most ``one_sided`` away or global.

    Attributes:
        document: (S,) whole numbers, which document a token belongs to; below 0: to none, it sees and is seen by none.
        position: (S,) whole numbers, the place in the document; any place for a prefix key.
        is_global: (S,) bool, True for a key that its whole document sees.
        one_sided: how many neighbours are seen on either side.
    """

    document: Tensor
    position: Tensor
    is_global: Tensor
    one_sided: int


class MasksOfBatch:
    """Holds what was made of some tensors for as long as these live and are not written to.

    Tensors made in inference mode carry no version: there their identity decides alone.
    """

    def __init__(self) -> None:
        self.held: dict[Hashable, tuple[tuple[weakref.ref[Tensor], ...], tuple[int, ...], BlockMask]] = {}

    def of(self, tensors: tuple[Tensor, ...], rest: tuple[Hashable, ...], make: Callable[[], BlockMask]) -> BlockMask:
        """Return what ``make`` has returned for these tensors and the same ``rest``."""
        if torch.compiler.is_compiling():  # a graph holds no weak references; it computes the mask once by itself
            return make()
        name = (*map(id, tensors), *rest)
        found = self.held.get(name)
        if (
            found is not None
            and found[1] == versions(tensors)
            and all(ref() is tensor for ref, tensor in zip(found[0], tensors, strict=True))
        ):
            return found[2]
        with torch.inference_mode(False), torch.no_grad():  # what is made in inference mode could not train later
            made = make()

        def forget(_: object) -> None:
            self.held.pop(name, None)

        self.held[name] = tuple(weakref.ref(tensor, forget) for tensor in tensors), versions(tensors), made
        return made


def versions(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Return how often each tensor was written to, as far as that is counted."""
    return tuple(-1 if tensor.is_inference() else tensor._version for tensor in tensors)


MASKS = MasksOfBatch()


def window_mask(window: Window) -> BlockMask:
    """Return the mask of a window, made for the first layer of a batch that asks for it."""

    def make() -> BlockMask:
        real = window.key_mask
        position = torch.arange(real.shape[1], device=real.device).expand_as(real)
        return run_mask(real.int() - 1, position, window.is_global(), window.one_sided)

    return MASKS.of((window.key_mask, window.global_index, window.global_mask), (window.one_sided,), make)


def documents_mask(documents: Documents) -> BlockMask:
    """Return the mask of packed documents, made for the first layer of a batch that asks for it."""
    tensors = documents.document, documents.position, documents.is_global

    def make() -> BlockMask:
        document, position, is_global = (x[None] for x in tensors)
        return run_mask(document, position, is_global, documents.one_sided)

    return MASKS.of(tensors, (documents.one_sided,), make)


def run_mask(document: Tensor, position: Tensor, is_global: Tensor, one_sided: int) -> BlockMask:
    """(B, S) each -> the mask of a batch of runs."""
    document, position = (x.to(torch.int32, copy=True) for x in (document, position))
    reach = torch.full((), min(one_sided, 2**31 - 1), dtype=torch.int32, device=document.device)
    sees = near_or_global(document, position, is_global.clone(), reach)
    length = document.shape[1]
    return block_mask(*run_blocks(document, position, is_global, one_sided), sees, (length, length))


def near_or_global(document: Tensor, position: Tensor, is_global: Tensor, reach: Tensor) -> Sees:
    """Return who sees whom in a run. It captures tensors alone, so that one graph serves every batch and layer."""

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        together = (document[b, q] == document[b, k]) & (document[b, q] >= 0)
        return together & (((position[b, q] - position[b, k]).abs() <= reach) | is_global[b, k])

    return sees


def run_blocks(document: Tensor, position: Tensor, is_global: Tensor, one_sided: int) -> tuple[Tensor, Tensor]:
    """(B, S) each -> two (B, C, C) bool, the blocks of which some and of which all scores are wanted.

    All documents are laid out on one line. A block of queries and one of keys have to do with each other when their
    intervals on it come within reach, or when the documents of the queries and those of the global keys overlap.
    """
    alive = document >= 0
    line = document.long() * APART + position
    low, high = bounds(line, alive)
    first, last = bounds(document.long(), alive)
    first_global, last_global = bounds(document.long(), alive & is_global)
    near = (low[:, :, None] <= high[:, None] + one_sided) & (low[:, None] <= high[:, :, None] + one_sided)
    front = (first[:, :, None] <= last_global[:, None]) & (first_global[:, None] <= last[:, :, None])
    one = (first == last) & by_block(alive, False).all(dim=-1)
    whole = one[:, :, None] & one[:, None] & (first[:, :, None] == first[:, None])
    inside = (high[:, :, None] - low[:, None]).maximum(high[:, None] - low[:, :, None]) <= one_sided
    return near | front, whole & inside


def bounds(x: Tensor, marked: Tensor) -> tuple[Tensor, Tensor]:
    """(B, S) -> (B, C) the least and the largest of each block's marked numbers; the least is above without any."""
    low = by_block(x.masked_fill(~marked, NOWHERE), NOWHERE).amin(dim=-1)
    return low, by_block(x.masked_fill(~marked, -NOWHERE), -NOWHERE).amax(dim=-1)


def by_block(x: Tensor, value: float) -> Tensor:
    """(B, S) -> (B, C, BLOCK), filled up with ``value``."""
    return F.pad(x, (0, -x.shape[1] % BLOCK), value=value).unflatten(1, (-1, BLOCK))


def block_mask(some: Tensor, every: Tensor, sees: Sees, lengths: tuple[int, int]) -> BlockMask:
    """Return FlexAttention's mask: (B, C_q, C_k) bool each, and the function for blocks that are wanted in part."""
    from torch.nn.attention.flex_attention import BlockMask

    options: dict[str, Any] = given(BlockMask.from_kv_blocks, lengths)
    return BlockMask.from_kv_blocks(*listed(some & ~every), *listed(every), BLOCK_SIZE=BLOCK, mask_mod=sees, **options)


def given(make: Callable[..., Any], lengths: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return the argument for lengths that fill no block, where torch has it (2.5 had not, and asked for none)."""
    return {"seq_lengths": lengths} if "seq_lengths" in inspect.signature(make).parameters else {}


def listed(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(B, C_q, C_k) bool -> how many blocks of keys each block of queries wants, and their numbers, those first."""
    marks = wanted[:, None].to(torch.int32)
    order = marks.argsort(dim=-1, descending=True, stable=True)
    return marks.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)
