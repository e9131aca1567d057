"""MPNet: full attention with a bias of the tokens' distance, through an attention module of ours.

The prefix enters right before the first layer, so that distances and masks are those of the text alone; the prefix has
no position, and no bias.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from foretoken.attention import DenseMask
from foretoken.backbones.base import (
    Attention,
    Backbone,
    Stack,
    adapter_of,
    in_tuple,
    offset_after_padding,
    text_dimensions,
)
from foretoken.backbones.masks import PrefixMask, extend_late_mask


class BiasedSelfAttention(MPNetSelfAttention):
    """MPNet's self-attention, with the adapter's part."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """(B, P + N, D), a mask to add (B, 1, N, N) and a bias (B, H, N, N) -> (B, P + N, D), weights if asked for."""
        adapter = adapter_of(self)
        if adapter is None:
            return super().forward(hidden_states, attention_mask, position_bias, output_attentions, **kwargs)
        query, key, value = (
            project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        if (prefix := adapter.prefix_mask) is not None:
            attention_mask = extend_late_mask(attention_mask, prefix, keys=key.shape[2], dtype=query.dtype)
            position_bias = extend_bias(position_bias, prefix)
        scale = 1 / math.sqrt(self.attention_head_size)
        mask = DenseMask(added(attention_mask, position_bias))
        dropout = self.dropout.p if self.training else 0.0
        out, after = adapter.attend(query, key, value, scale=scale, dropout=dropout, mask=mask)
        adapter.deliver(after)
        output = self.o(out.transpose(1, 2).flatten(2))
        return (output, adapter.own_weights(query, key, scale=scale, mask=mask)) if output_attentions else (output,)


def extend_bias(bias: Tensor | None, prefix: PrefixMask) -> Tensor | None:
    """(B, H, N, N) -> (B, H, P + N, P + N), zero where the prefix is; once per pass, as the layers share it."""
    if bias is None:
        return None
    return prefix.remember(bias, lambda: F.pad(bias, (prefix.length, 0, prefix.length, 0)))


def added(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return the sum of two masks to add to the scores, either of which may be missing."""
    if mask is None or bias is None:
        return bias if mask is None else mask
    return mask + bias


def attach_biased(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let the attention modules be of our class: the same objects, names and weights, another forward."""
    for attention in attentions:
        attention.__class__ = BiasedSelfAttention


def detach_biased(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    for attention in attentions:
        attention.__class__ = MPNetSelfAttention


MPNET = Backbone(
    model_types=("mpnet",),
    stacks=(
        Stack(
            layers="encoder.layer",
            attention=Attention("attention.attn", ("attention.attn.q",), "attention.attn.o"),
            feed_forward=("intermediate", "output.dense"),
            end="encoder",
            layer_output=in_tuple,
        ),
    ),
    heads=("classifier", "qa_outputs"),
    pooled_heads=("ForMultipleChoice",),
    projections=("q", "v"),
    dimensions=text_dimensions,
    attach_attention=attach_biased,
    detach_attention=detach_biased,
    position_offset=offset_after_padding,
)
