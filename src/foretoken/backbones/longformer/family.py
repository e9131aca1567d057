"""Longformer: the declaration."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.backbones.base import Attention, Backbone, Stack, in_tuple, offset_after_padding, text_dimensions
from foretoken.backbones.bert.family import HEADS
from foretoken.backbones.longformer.attention import GlobalTokens
from foretoken.backbones.longformer.mask_row import make_one_row
from foretoken.backbones.longformer.packed import PackingSelfAttention, attach_encoder, detach_encoder
from foretoken.backbones.masks import extend_text_mask
from foretoken.backbones.module_value import Keywords


def extend_longformer(kwargs: Keywords, prefix_mask: Tensor) -> Keywords:
    """Mark the prefix as global tokens, for which LongformerModel needs both masks."""
    kwargs = extend_text_mask(kwargs, prefix_mask)
    text_global = kwargs.get("global_attention_mask")
    if text_global is None:
        tokens = kwargs["attention_mask"].shape[1] - prefix_mask.shape[1]
        text_global = kwargs["attention_mask"].new_zeros(prefix_mask.shape[0], tokens)
    prefix_global = text_global.new_ones(prefix_mask.shape)
    return {**kwargs, "global_attention_mask": torch.cat([prefix_global, text_global], dim=1)}


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
            entry=("embeddings",),
            end="encoder",
            extend_inputs=extend_longformer,
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
