"""LED: Longformer's sliding window and global tokens in the encoder, BART's decoder.

The prefix enters before the encoder's first layer, after transformers has padded the text to its window. Its tokens are
global: the attention adds them to the masks. The encoder's layers see a batch as one run of tokens without padding,
which the first layer packs and the last one unpacks; the decoder sees padded batches.

Shapes: B batch, N queries, M keys, P prefix length, H heads, K head width, D model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Cache
from transformers.models.led.modeling_led import LEDDecoderAttention, LEDEncoderSelfAttention

from foretoken.attention import AttentionCall, DenseMask, Weighting
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.base import (
    Attention,
    Backbone,
    PassFacts,
    Stack,
    adapter_of,
    attended_padded,
    facts_of,
    offset_after_padding,
    split_heads,
)
from foretoken.backbones.head_inputs import RECORDED
from foretoken.backbones.longformer.attention import GlobalTokens, WindowedSelfAttention
from foretoken.backbones.longformer.mask_row import make_one_row
from foretoken.backbones.longformer.packed import PackedAttention
from foretoken.backbones.module_value import Arguments, Keywords
from foretoken.backbones.packing import FirstLayerPacks, let_layers_pack, may_pack, stop_layers_packing
from foretoken.backbones.seq2seq import BART_DECODER, HEADS, bart_dimensions, keys_and_values
from foretoken.errors import BackboneError

SELF_ATTENTION = "self_attn.longformer_self_attn"  # in a layer of the encoder


class WindowedEncoderAttention(WindowedSelfAttention, LEDEncoderSelfAttention):
    """The encoder's self-attention through :func:`foretoken.attention.attend`, the prefix as global tokens."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | PackedBatch | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """(B, N, D) -> ((B, N, D),), or packed (1, S, D); masks of the text, True for a masked or a global token."""
        if isinstance(attention_mask, PackedBatch):
            return (PackedAttention(self, attention_mask)(hidden_states),)
        if facts_of(self).rests:
            masks = (attention_mask, is_index_masked, is_index_global_attn, is_global_attn)
            return LEDEncoderSelfAttention.forward(self, hidden_states, *masks, output_attentions)
        if output_attentions:
            raise BackboneError("LED with an adapter does not return attention maps; leave out output_attentions")
        return super().forward(
            hidden_states, is_index_masked=is_index_masked, is_index_global_attn=is_index_global_attn
        )


class AdaptedDecoderAttention(LEDDecoderAttention):
    """The decoder's attentions, with the adapter's part; without an adapter transformers' own forward method."""

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
        weighting = Weighting(dropout=(self.dropout or 0.0) if self.training else 0.0)
        call = AttentionCall(query, key, value, self.scaling, DenseMask(attention_mask), weighting)
        out, weights = attended_padded(adapter, call, weights=output_attentions)
        return self.out_proj(out), weights, past_key_values

    def projected(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(B, M, D) -> keys and values (B, H, M, K)."""
        return self.heads(self.k_proj(states)), self.heads(self.v_proj(states))

    def heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, H, N, K)."""
        return split_heads(x, self.num_heads)


class LedEncoderPacks(FirstLayerPacks):
    """Packs the encoder's batch for every caller, as its last hidden states are read with the mask of the text."""

    def __init__(self, encoder: Any) -> None:
        super().__init__(encoder, list(encoder.layers), SELF_ATTENTION)
        self.records = False
        self.handles.append(encoder.register_forward_pre_hook(self.before_pass, with_kwargs=True))

    def before_pass(self, encoder: Any, args: Arguments, kwargs: Keywords) -> None:
        """Note whether the pass records states: a forward pre-hook of the encoder."""
        asked = {name: kwargs.get(f"output_{name}") for name in RECORDED}
        self.records = any(
            getattr(encoder.config, f"output_{n}") if value is None else value for n, value in asked.items()
        )

    def may_begin(self, facts: PassFacts, hidden: Tensor) -> bool:
        """Tell whether this pass is packed; not with layer dropout, which may drop the last layer."""
        encoder: Any = self.encoder
        drops = encoder.training and encoder.layerdrop > 0
        return not self.records and not drops and may_pack(encoder, facts, hidden)

    def masks(self, mask: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the masked and the global tokens of a (B, N) mask: below and above 0."""
        return mask < 0, mask > 0


def attach_led(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Give attention modules and the encoder's layers our classes: the same objects, names and weights."""
    make_one_row()
    global_tokens = GlobalTokens()
    for attention in attentions:
        if isinstance(attention, LEDEncoderSelfAttention):
            attention.__class__ = WindowedEncoderAttention
            attention.global_tokens = global_tokens  # type: ignore[assignment]
        else:
            attention.__class__ = AdaptedDecoderAttention
    let_layers_pack(LedEncoderPacks(body.get_submodule("encoder")))


def detach_led(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Undo :func:`attach_led`."""
    for attention in attentions:
        if isinstance(attention, LEDEncoderSelfAttention):
            del attention.global_tokens
            attention.__class__ = LEDEncoderSelfAttention
        else:
            attention.__class__ = LEDDecoderAttention
    stop_layers_packing(body.get_submodule("encoder"))


LED = Backbone(
    model_types=("led",),
    stacks=(
        Stack(
            path="encoder",
            layers="encoder.layers",
            attention=Attention(
                module=SELF_ATTENTION,
                query=(f"{SELF_ATTENTION}.query", f"{SELF_ATTENTION}.query_global"),
                output="self_attn.output",
                has_global=True,
            ),
            feed_forward=("fc1", "fc2"),
        ),
        BART_DECODER,
    ),
    heads=HEADS,
    projections=("query", "value", "query_global", "value_global", "q_proj", "v_proj"),
    dimensions=bart_dimensions,
    attach_attention=attach_led,
    detach_attention=detach_led,
    position_offset=offset_after_padding,
    first_token_is_global=True,
    packs_padded_batches=True,
)
