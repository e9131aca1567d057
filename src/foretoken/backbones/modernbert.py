"""ModernBERT: global and local layers, rotary positions.

The rows in front of the text enter right before the first layer: windows and positions are those of the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foretoken.backbones.base import Attention, Backbone, Stack, text_dimensions
from foretoken.backbones.interface import MARK, attach_interface, detach_interface
from foretoken.errors import BackboneError

WINDOW_IN_KERNEL = ("flash", "flex")


def extend_rotary(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Put the rows in front at their document's first position, which is 0 wherever it is padded: no rotation."""
    start = first_tokens(kwargs["attention_mask"])
    cosine, sine = (with_rows(x, start, row_mask.shape[1]) for x in kwargs["position_embeddings"])
    return {**kwargs, "position_embeddings": (cosine, sine)}


def first_tokens(mask: Tensor | None) -> Tensor | None:
    """(B, 1, N, N) mask of a layer -> where each document begins (B,); None where there is no padding."""
    if mask is None:
        return None
    itself = mask.expand(-1, -1, mask.shape[-1], -1).diagonal(dim1=-2, dim2=-1)[:, 0]  # padding is not seen by itself
    visible = itself if mask.dtype == torch.bool else itself > torch.finfo(mask.dtype).min / 2
    return visible.int().argmax(dim=-1)


def with_rows(rotation: Tensor, start: Tensor | None, rows: int) -> Tensor:
    """(1 or B, N, K) -> (1 or B, P + N, K): P times the rotation of each document's first token, and the text's."""
    if start is None:
        front = rotation[:, :1]
    else:
        size = max(len(start), len(rotation))
        rotation = rotation.expand(size, -1, -1)
        front = rotation.gather(1, start[:, None, None].expand(size, 1, rotation.shape[-1]))
    return torch.cat([front.expand(-1, rows, -1), rotation], dim=1)


def modernbert_dimensions(config: Any) -> Mapping[str, int]:
    """Read the config.

    Raises:
        BackboneError: the attention kernel has the local window built in, and local tokens would not see the rows.
    """
    implementation = (config._attn_implementation or "").removeprefix(MARK)
    if any(name in implementation for name in WINDOW_IN_KERNEL):
        raise BackboneError(
            f"attention {implementation!r} has ModernBERT's local window built in and lets nothing else be seen; "
            "load the model with attn_implementation='sdpa'"
        )
    return text_dimensions(config)


MODERNBERT = Backbone(
    model_types=("modernbert",),
    stacks=(
        Stack(
            layers="layers",
            attention=Attention("attn", ("attn.Wqkv",), "attn.Wo"),
            feed_forward=("mlp", "mlp"),
            is_rotary=True,
            extend_layer=extend_rotary,
        ),
    ),
    heads=("head", "classifier"),
    pooled_heads=(),
    pretrained_heads=("ForMaskedLM",),
    projections=("Wqkv",),
    dimensions=modernbert_dimensions,
    attach_attention=attach_interface,
    detach_attention=detach_interface,
)
