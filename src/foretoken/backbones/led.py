"""LED: Longformer's sliding window and global tokens in the encoder, BART's decoder.

The prefix enters before the encoder's first layer, after transformers has padded the text to its window, and is made
of global tokens: the attention puts it into the masks by itself.

Shapes: B batch, N queries, M keys, P prefix length, H heads, K head width, D model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache
from transformers.models.led.modeling_led import LEDDecoderAttention, LEDEncoderSelfAttention

from foretoken.attention import DenseMask
from foretoken.backbones.base import ADAPTER, Attention, Backbone, Stack, adapter_of, offset_after_padding
from foretoken.backbones.longformer.attention import GlobalTokens, WindowedSelfAttention
from foretoken.backbones.seq2seq import BART_DECODER, HEADS, bart_dimensions, keys_and_values
from foretoken.errors import BackboneError


class WindowedEncoderAttention(WindowedSelfAttention, LEDEncoderSelfAttention):
    """The encoder's self-attention through :func:`foretoken.attention.attend`, the prefix as global tokens."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """(B, N, D) -> ((B, N, D),); masks of the text, True for a masked or a global token."""
        if (adapter := ADAPTER.get(self)) is not None and adapter.rests:
            masks = (attention_mask, is_index_masked, is_index_global_attn, is_global_attn)
            return LEDEncoderSelfAttention.forward(self, hidden_states, *masks, output_attentions)
        if output_attentions:
            raise BackboneError("LED with an adapter does not return attention maps; leave out output_attentions")
        return super().forward(
            hidden_states, is_index_masked=is_index_masked, is_index_global_attn=is_index_global_attn
        )


class AdaptedDecoderAttention(LEDDecoderAttention):
    """The decoder's attentions, with the adapter's part in them; transformers' own forward where there is none."""

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        """(B, N, D) -> (B, N, D), the weights where they are asked for, and the cache."""
        adapter = adapter_of(self)
        if adapter is None:
            return super().forward(hidden_states, key_value_states, past_key_values, attention_mask, output_attentions)
        is_cross = key_value_states is not None
        states = hidden_states if key_value_states is None else key_value_states
        query = self.heads(self.q_proj(hidden_states))
        key, value = keys_and_values(self.projected, states, past_key_values, self.layer_idx, is_cross=is_cross)
        options: dict[str, Any] = {"scale": self.scaling, "mask": DenseMask(attention_mask)}
        dropout = (self.dropout or 0.0) if self.training else 0.0
        out, after = adapter.attend(query, key, value, dropout=dropout, **options)
        adapter.deliver(after)
        weights = adapter.own_weights(query, key, **options) if output_attentions else None
        return self.out_proj(out.transpose(1, 2).flatten(2)), weights, past_key_values

    def projected(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(B, M, D) -> keys and values (B, H, M, K)."""
        return self.heads(self.k_proj(states)), self.heads(self.v_proj(states))

    def heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, H, N, K)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def attach_led(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let the attention modules be of our classes: the same objects, names and weights, another forward."""
    global_tokens = GlobalTokens()
    for attention in attentions:
        if isinstance(attention, LEDEncoderSelfAttention):
            attention.__class__ = WindowedEncoderAttention
            attention.global_tokens = global_tokens  # type: ignore[assignment]
        else:
            attention.__class__ = AdaptedDecoderAttention


def detach_led(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    for attention in attentions:
        if isinstance(attention, LEDEncoderSelfAttention):
            del attention.global_tokens
            attention.__class__ = LEDEncoderSelfAttention
        else:
            attention.__class__ = LEDDecoderAttention


LED = Backbone(
    model_types=("led",),
    stacks=(
        Stack(
            path="encoder",
            layers="encoder.layers",
            attention=Attention(
                module="self_attn.longformer_self_attn",
                query=("self_attn.longformer_self_attn.query", "self_attn.longformer_self_attn.query_global"),
                output="self_attn.output",
                has_global=True,
            ),
            feed_forward=("fc1", "fc2"),
        ),
        BART_DECODER,
    ),
    heads=HEADS,
    pooled_heads=(),
    projections=("query", "value", "query_global", "value_global", "q_proj", "v_proj"),
    dimensions=bart_dimensions,
    attach_attention=attach_led,
    detach_attention=detach_led,
    position_offset=offset_after_padding,
    first_token_is_global=True,
)
