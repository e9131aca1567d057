"""Causal decoders: GPT-2, and the rotary family of Llama (Qwen 2 and 3, Mistral, Gemma 3)."""

from __future__ import annotations

from functools import partial

from transformers import DynamicCache, PreTrainedConfig

from foretoken.backbones.attention_interface import interface_dimensions, is_attached
from foretoken.backbones.base import Attention, Backbone, Stack
from foretoken.backbones.decoder_heads import note_decoder_head
from foretoken.backbones.packed_decoders import attach_layers, detach_layers

HEADS = ("score", "classifier", "qa_outputs")
GROWING = ("dynamic", "longrope")  # rotations that depend on the length of the text


def cannot_cache(config: PreTrainedConfig) -> str | None:
    """Return why a key-value cache of transformers' own cannot keep a prefix in front of every text."""
    if any(DynamicCache(config=config).is_sliding):
        return "layers with a sliding window drop the prefix from their cache"
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    return f"rotations of the kind {kind!r} depend on the length of the text" if kind in GROWING else None


GPT2 = Backbone(
    model_types=("gpt2",),
    stacks=(
        Stack(
            layers="h",
            attention=Attention("attn", ("attn.c_attn",), "attn.c_proj"),
            feed_forward=("mlp", "mlp"),
            is_causal=True,
            takes_positions=True,
        ),
    ),
    heads=HEADS,
    pooled_heads=(),
    projections=("c_attn",),
    dimensions=interface_dimensions,  # GPT2Config answers to the usual names through its attribute map
    attach_attention=partial(attach_layers, layers="h", attention="attn"),
    detach_attention=partial(detach_layers, layers="h", attention="attn"),
    is_attached=is_attached,
    packs_padded_batches=True,
    note_head=note_decoder_head,
    segments_are_tokens=True,
)

LLAMA = Backbone(
    model_types=("llama", "qwen2", "qwen3", "mistral", "gemma3_text"),
    stacks=(
        Stack(
            layers="layers",
            attention=Attention("self_attn", ("self_attn.q_proj",), "self_attn.o_proj", is_rotary=True),
            feed_forward=("mlp", "mlp"),
            is_causal=True,
            takes_positions=True,
        ),
    ),
    heads=HEADS,
    pooled_heads=(),
    projections=("q_proj", "v_proj"),
    dimensions=interface_dimensions,
    cannot_cache=cannot_cache,
    attach_attention=partial(attach_layers, layers="layers", attention="self_attn"),
    detach_attention=partial(detach_layers, layers="layers", attention="self_attn"),
    is_attached=is_attached,
    packs_padded_batches=True,
    note_head=note_decoder_head,
)
