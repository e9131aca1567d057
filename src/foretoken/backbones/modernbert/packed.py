"""ModernBERT over a run of documents without padding.

The body runs its layers itself. The first layer, of our class as all are, packs what it is called with, outside of
gradient checkpointing and before the prefix enters; a hook of the final norm unpacks. Linear maps and norms run
without padding, attention with it, as in BERT.

Shapes: B documents, P prefix length, N tokens of the padded texts, T real tokens of all, S = B P + T, K head width, D
model width.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from foretoken.backbones.attention_interface import attach_interface, detach_interface
from foretoken.backbones.module_value import Arguments
from foretoken.backbones.packing import (
    PACKS,
    FirstLayerPacks,
    PackingLayer,
    let_layers_pack,
    pack_rotations,
    stop_layers_packing,
)


class BodyHooks(FirstLayerPacks):
    """Pack what enters the first layer, and unpack what leaves the last one."""

    def __init__(self, body: Any) -> None:
        super().__init__(body, list(body.layers), "attn")
        self.handles += [
            # after the tuner's hook, which notes how queries are rotated
            *(layer.attn.register_forward_pre_hook(pack_rotations, with_kwargs=True) for layer in body.layers),
            body.final_norm.register_forward_pre_hook(self.before_norm),
        ]

    def before_norm(self, norm: nn.Module, args: Arguments) -> Any:
        """Unpack the hidden states that leave the last layer."""
        return None if self.batch is None else (self.leaving(args[0]),)


class PackingModernBertLayer(PackingLayer, ModernBertEncoderLayer):
    """ModernBERT's layer, which packs."""


def attach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its adapter, and the body pack its batches."""
    attach_interface(body, attentions)
    if PACKS.get(body) is None:
        let_layers_pack(BodyHooks(body), PackingModernBertLayer)


def detach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    detach_interface(body, attentions)
    stop_layers_packing(body, ModernBertEncoderLayer)
