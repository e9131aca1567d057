"""ModernBERT: global and local layers, rotary positions.

The rows in front of the text enter right before the first layer: windows and positions are those of the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.backbones.base import Attention, Backbone, Stack, text_dimensions
from foretoken.backbones.interface import MARK, attach_interface, detach_interface
from foretoken.errors import BackboneError

WINDOW_IN_KERNEL = ("flash", "flex")


def extend_rotary(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Leave the rows in front unrotated: cosine 1, sine 0 before the text's (1 or B, N, K)."""
    cosine, sine = kwargs["position_embeddings"]
    front = (0, 0, row_mask.shape[1], 0)
    return {**kwargs, "position_embeddings": (F.pad(cosine, front, value=1.0), F.pad(sine, front))}


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
