"""Pure tensor maths of attention: no transformers, no peft, no configuration objects."""

from foretoken.attention.attend import attend, attend_call, own_weights
from foretoken.attention.call import AttentionCall, ExtraColumns, Placement
from foretoken.attention.engines.dense import repeat_heads
from foretoken.attention.engines.projected import LinearMap, Projected
from foretoken.attention.engines.table import engines
from foretoken.attention.kernels import Weighting
from foretoken.attention.masks import Blocks, DenseMask, Mask, Packed, Window, causal_mask

__all__ = [
    "AttentionCall",
    "Blocks",
    "DenseMask",
    "ExtraColumns",
    "LinearMap",
    "Mask",
    "Packed",
    "Placement",
    "Projected",
    "Weighting",
    "Window",
    "attend",
    "attend_call",
    "causal_mask",
    "engines",
    "own_weights",
    "repeat_heads",
]
