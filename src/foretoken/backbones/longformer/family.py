"""Longformer: the declaration."""

from __future__ import annotations

from torch import nn
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.backbones.base import Attention, Backbone, Stack, in_tuple, offset_after_padding, text_dimensions
from foretoken.backbones.bert import HEADS
from foretoken.backbones.longformer.attention import GlobalTokens
from foretoken.backbones.longformer.mask_row import make_one_row
from foretoken.backbones.longformer.packed import PackingSelfAttention, attach_encoder, detach_encoder


def attach_longformer(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Give the attention modules and the encoder our classes: the same objects, names and weights."""
    make_one_row()
    global_tokens = GlobalTokens()
    for attention in attentions:
        attention.__class__ = PackingSelfAttention
        attention.global_tokens = global_tokens  # type: ignore[assignment]
    attach_encoder(body.get_submodule("encoder"))


def detach_longformer(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Undo :func:`attach_longformer`."""
    for attention in attentions:
        del attention.global_tokens
        attention.__class__ = LongformerSelfAttention
    detach_encoder(body.get_submodule("encoder"))


LONGFORMER = Backbone(
    model_types=("longformer",),
    stacks=(
        Stack(
            layers="encoder.layer",
            attention=Attention(
                module="attention.self",
                query=("attention.self.query", "attention.self.query_global"),
                output="attention.output.dense",
                has_global=True,
            ),
            feed_forward=("intermediate", "output.dense"),
            end="encoder",
            layer_output=in_tuple,
        ),
    ),
    heads=HEADS,
    pooled_heads=("ForMultipleChoice",),
    first_token_heads=("ForSequenceClassification", "ForMultipleChoice"),
    projections=("query", "value", "query_global", "value_global"),
    dimensions=text_dimensions,
    attach_attention=attach_longformer,
    detach_attention=detach_longformer,
    position_offset=offset_after_padding,
)
