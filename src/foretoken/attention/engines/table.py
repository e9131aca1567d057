"""The engines as values: what each computes, and what it can do by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from foretoken.attention.call import AttentionCall, ExtraColumns
from foretoken.attention.engines import block_sparse, cpu_band, dense, flex, window
from foretoken.attention.engines.projected import Projected, attend_projected
from foretoken.attention.masks import Blocks, DenseMask, Mask, Packed, Window


@dataclass(frozen=True)
class Engine:
    """One way to compute the attention of one kind of mask.

    Attributes:
        name: its name in recipes, in the environment variable and in :func:`foretoken.attention.attend`.
        mask: the kind of mask.
        run: computes a call with extra columns, as :func:`foretoken.attention.attend` does. Columns that it does not
            support are computed from its results.
        outside_softmax: it computes columns outside the softmax itself; other engines run twice for them.
        prefix: it takes the keys and values of a prefix; for other engines they become score columns.
        prefix_mask: it takes a mask of the prefix's keys, for documents that lack some of them.
        plain_only: it supports no dropout of attention weights, and only the exponential kernel.
        cpu_only: it reads the documents' positions as numbers, which works on a CPU and outside of traced graphs only.
        on_request: it runs only where it is named.
    """

    name: str
    mask: type[Mask]
    run: Callable[[AttentionCall, ExtraColumns], tuple[Tensor, Tensor | None]]
    outside_softmax: bool = False
    prefix: bool = False
    prefix_mask: bool = False
    plain_only: bool = False
    cpu_only: bool = False
    on_request: bool = False


GATHER = Engine("gather-sdpa", Window, window.attend_gather)
PROJECTED = Engine("projected", Projected, attend_projected, outside_softmax=True)

# in the order of preference among the engines of one mask
ENGINES = (
    Engine("block", Window, cpu_band.attend_window, outside_softmax=True, prefix=True, plain_only=True, cpu_only=True),
    Engine("block", Packed, cpu_band.attend_packed, outside_softmax=True, prefix=True, plain_only=True, cpu_only=True),
    GATHER,
    Engine("gather-sdpa", Blocks, block_sparse.attend_gather),
    Engine("sdpa", DenseMask, dense.attend_sdpa, prefix=True, prefix_mask=True),
    Engine("flex", Window, flex.attend_window, outside_softmax=True, plain_only=True, on_request=True),
    Engine("flex", Packed, flex.attend_packed, outside_softmax=True, prefix=True, plain_only=True, on_request=True),
    Engine("reference", DenseMask, dense.attend_reference, outside_softmax=True, on_request=True),
    Engine("reference", Window, window.attend_reference, outside_softmax=True, on_request=True),
    Engine("reference", Blocks, block_sparse.attend_reference, outside_softmax=True, on_request=True),
)
NAMES = tuple(dict.fromkeys(engine.name for engine in ENGINES))
BY_MASK: dict[type[Mask], tuple[Engine, ...]] = {
    kind: tuple(engine for engine in (*ENGINES, PROJECTED) if engine.mask is kind)
    for kind in (DenseMask, Window, Packed, Blocks, Projected)
}


def engines(mask: type[Mask] = DenseMask) -> tuple[str, ...]:
    """Return the names of the engines of one kind of mask.

    >>> engines()
    ('sdpa', 'reference')
    >>> engines(Window)
    ('block', 'gather-sdpa', 'flex', 'reference')
    >>> engines(Packed)
    ('block', 'flex')
    >>> engines(Blocks)
    ('gather-sdpa', 'reference')
    """
    return tuple(engine.name for engine in BY_MASK[mask])
