"""ModernBERT over a run of documents without padding.

The body runs its layers itself. The first layer, of our class as all are, packs what it is called with, outside of
gradient checkpointing and before the prefix enters; the last one unpacks what it returns. Linear maps and norms run
without padding, attention with it, as in BERT.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from foretoken.backbones.attention_interface import attach_interface, detach_interface
from foretoken.backbones.packing import (
    PACKS,
    PackingLayer,
    RotaryPacks,
    let_layers_pack,
    stop_layers_packing,
)


class PackingModernBertLayer(PackingLayer, ModernBertEncoderLayer):
    """ModernBERT's layer, which packs."""


def attach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its adapter, and the body pack its batches."""
    attach_interface(body, attentions)
    if PACKS.get(body) is None:
        layers: Any = body.get_submodule("layers")
        let_layers_pack(RotaryPacks(body, list(layers), "attn"), PackingModernBertLayer)


def detach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    detach_interface(body, attentions)
    stop_layers_packing(body, ModernBertEncoderLayer)
