"""ModernBERT: global and local layers, rotary positions.

The rows in front of the text enter right before the first layer: windows and positions are those of the text alone.

Shapes: B batch, N text tokens, P rows in front of the text, K head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.backbones.base import Attention, Backbone, Stack, branch_of, text_dimensions
from foretoken.backbones.interface import MARK, attach_interface, detach_interface
from foretoken.errors import BackboneError

POSITIONS = "foretoken_positions"  # where the body keeps what counts its positions
WINDOW_IN_KERNEL = ("flash", "flex")


def extend_rotary(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Put the rows in front at position 0, which is no rotation: cosine 1 and sine 0 before the (1 or B, N, K)."""
    cosine, sine = kwargs["position_embeddings"]
    front = (0, 0, row_mask.shape[1], 0)
    return {**kwargs, "position_embeddings": (F.pad(cosine, front, value=1.0), F.pad(sine, front))}


class PositionsFromStart:
    """Counts positions from each document's first token on, wherever its padding is, while an adapter acts.

    Without adapters only distances matter. But the queries that meet a prefix are rotated by their position.
    """

    def __init__(self, body: nn.Module, attentions: list[nn.Module]) -> None:
        self.attentions = attentions
        self.handle = body.register_forward_pre_hook(self.before, with_kwargs=True)

    def before(self, body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give the positions that the user did not give."""
        mask = kwargs.get("attention_mask")
        if kwargs.get("position_ids") is not None or not isinstance(mask, Tensor) or mask.dim() != 2:
            return None
        if next((True for attention in self.attentions if branch_of(attention)), None) is None:
            return None
        start = mask.bool().int().argmax(dim=1, keepdim=True)
        return args, {**kwargs, "position_ids": torch.arange(mask.shape[1], device=mask.device) - start}


def attach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its branch, and positions count from the documents' first tokens."""
    attach_interface(body, attentions)
    if POSITIONS not in body.__dict__:
        body.__dict__[POSITIONS] = PositionsFromStart(body, attentions)


def detach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Undo it."""
    body.__dict__.pop(POSITIONS).handle.remove()
    detach_interface(body, attentions)


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
            attention=Attention("attn", ("attn.Wqkv",), "attn.Wo", is_rotary=True),
            feed_forward=("mlp", "mlp"),
            extend_layer=extend_rotary,
        ),
    ),
    heads=("head", "classifier"),
    pooled_heads=(),
    pretrained_heads=("ForMaskedLM",),
    projections=("Wqkv",),
    dimensions=modernbert_dimensions,
    attach_attention=attach_modernbert,
    detach_attention=detach_modernbert,
)
