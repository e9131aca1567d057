"""ModernBERT: global and local layers, rotary positions.

The prefix enters right before the first layer: windows and positions are those of only the text. The body runs its
layers itself. The layers are of our class: the first one packs its input, outside of gradient checkpointing and before
the prefix enters, and the last one unpacks its output. Linear maps and norms run without padding, attention with
padding, as in BERT.

Shapes: B batch, N text tokens, P prefix length, K head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from foretoken.backbones.attention_interface import (
    attach_interface,
    detach_interface,
    interface_dimensions,
    is_attached,
)
from foretoken.backbones.base import Attention, Backbone, Stack, alone
from foretoken.backbones.module_value import Keywords
from foretoken.backbones.packing import PACKS, PackingLayer, RotaryPacks, let_layers_pack, stop_layers_packing


def extend_rotary(kwargs: Keywords, prefix_mask: Tensor) -> Keywords:
    """Prepend the rotation of the prefix, at position 0 with sine 0, to the (1 or B, N, K) of the text.

    The largest cosine is that of position 0: 1, or the factor of rotary positions that also scale (YaRN).
    """
    cosine, sine = kwargs["position_embeddings"]
    length = prefix_mask.shape[1]
    front = (0, 0, length, 0)
    unrotated = cosine.amax(dim=(0, 1, 2)).expand(cosine.shape[0], length, cosine.shape[2])
    return {**kwargs, "position_embeddings": (torch.cat([unrotated, cosine], dim=1), F.pad(sine, front))}


class PackingModernBertLayer(PackingLayer, ModernBertEncoderLayer):
    """ModernBERT's layer, which packs."""


def attach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its adapter, and the layers pack their batches."""
    attach_interface(body, attentions)
    if PACKS.get(body) is None:
        layers: Any = body.get_submodule("layers")
        let_layers_pack(RotaryPacks(body, list(layers), "attn"), PackingModernBertLayer)


def detach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Undo :func:`attach_modernbert`."""
    detach_interface(body, attentions)
    stop_layers_packing(body, ModernBertEncoderLayer)


MODERNBERT = Backbone(
    model_types=("modernbert",),
    stacks=(
        Stack(
            layers="layers",
            attention=Attention("attn", ("attn.Wqkv",), "attn.Wo", is_rotary=True),
            feed_forward=("mlp", "mlp"),
            takes_positions=True,
            extend_layer=extend_rotary,
            layer_output=alone,
        ),
    ),
    heads=("head", "classifier"),
    pretrained_heads=("ForMaskedLM",),
    projections=("Wqkv",),
    dimensions=interface_dimensions,
    attach_attention=attach_modernbert,
    detach_attention=detach_modernbert,
    is_attached=is_attached,
    packs_padded_batches=True,
)
