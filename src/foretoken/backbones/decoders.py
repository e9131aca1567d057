"""Causal decoders: GPT-2, and the rotary family of Llama (Qwen 2 and 3, Mistral, Gemma 3)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from foretoken.attention.packed import PackedBatch
from foretoken.backbones.attention_interface import (
    attach_interface,
    detach_interface,
    interface_dimensions,
    is_attached,
)
from foretoken.backbones.base import ADAPTER, Attention, AttentionAdapter, Backbone, Stack, facts_of
from foretoken.backbones.decoder_heads import note_decoder_head
from foretoken.backbones.module_value import Keywords
from foretoken.backbones.packing import (
    PACKS,
    RotaryPacks,
    masked_texts,
    note_packed,
)

HEADS = ("score", "classifier", "qa_outputs")
GROWING = ("dynamic", "longrope")  # rotations that depend on the length of the text


@dataclass(frozen=True)
class PaddedCache:
    """What a packed layer is given in the place of an empty key-value cache, whose keys have the padding."""

    cache: DynamicCache
    batch: PackedBatch

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Let the cache have the keys and values (1, H_kv, T, K), which are all that the layer's queries may see."""
        padded, values = (self.batch.unpack(x.transpose(1, 2)).transpose(1, 2) for x in (key, value))
        self.cache.update(padded, values, layer, *args, **kwargs)
        return key, value


class DecoderPacks(RotaryPacks):
    """Packs what enters the first layer of a body, where it begins a text, and unpacks what leaves the last one."""

    def begin(self, adapter: AttentionAdapter | None, masked: Tensor, is_global: Tensor | None = None) -> PackedBatch:
        """Return the batch, and let the adapters and the head know; documents with heads of their own are unpacked."""
        batch = super().begin(adapter, masked, is_global)
        if adapter is not None and adapter.facts.mixed_size is not None:
            note_packed(self.encoder, None)
        return batch

    def packed(self, layer: nn.Module, given: Keywords) -> Keywords | None:
        """Return what a layer is called with in the place of what is given; None where that stays."""
        hidden, mask = given["hidden_states"], given.get("attention_mask")
        if layer is self.layers[0] and isinstance(mask, Tensor) and self.can_begin(given, mask, hidden):
            masked = masked_texts(mask, hidden)
            if bool(masked.any()):
                adapter = ADAPTER.get(layer.get_submodule(self.path))
                hidden = self.begin(adapter, masked).pack_text(hidden)
        if self.batch is None:
            return None
        assert isinstance(mask, Tensor)
        changed: Keywords = {"hidden_states": hidden, "attention_mask": self.batch.with_mask(mask)}
        if (held := given.get("past_key_values")) is not None:
            changed["past_key_values"] = PaddedCache(held, self.batch)
        return given | changed

    def can_begin(self, given: Keywords, mask: Tensor, hidden: Tensor) -> bool:
        """Tell whether this pass can be packed: not that of the prefix alone, and not one that goes on with a cache."""
        facts = facts_of(self.layers[0].get_submodule(self.path))
        is_square = mask.shape[2:] == (hidden.shape[1], hidden.shape[1])
        if not is_square or facts.prefix_length or given.get("encoder_hidden_states") is not None:
            return False
        held = given.get("past_key_values")
        is_empty = held is None or (type(held) is DynamicCache and held.get_seq_length() == 0)
        return is_empty and self.may_begin(facts, hidden)


class PackingDecoderLayer(nn.Module):
    """A layer that asks the body's hooks what it is called with, before gradient checkpointing notes it."""

    theirs: ClassVar[type[nn.Module]]
    argument_names: ClassVar[tuple[str, ...]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """(B, N, D) -> (B, N, D); in a packed pass (1, T, D) -> (1, T, D), but for the ends of the stack."""
        hooks = PACKS.get(self)
        given = dict(zip(self.argument_names, args, strict=False)) | kwargs
        packed = hooks.packed(self, given) if isinstance(hooks, DecoderPacks) else None
        if hooks is None or packed is None:
            return super().__call__(*args, **kwargs)
        return hooks.left(self, super().__call__(packed.pop("hidden_states"), **packed))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Make the class anew where the layer is copied or unpickled."""
        return new_layer, (self.theirs,), vars(self)


CLASSES: dict[type[nn.Module], type[nn.Module]] = {}  # those of layers that pack, by transformers' own


def packing_class(theirs: type[nn.Module]) -> type[nn.Module]:
    """Return the class of a family's layers that pack; it has the name of theirs, by which others look for layers."""
    if theirs not in CLASSES:
        names = tuple(inspect.signature(theirs.forward).parameters)[1:]
        CLASSES[theirs] = type(
            theirs.__name__, (PackingDecoderLayer, theirs), {"theirs": theirs, "argument_names": names}
        )
    return CLASSES[theirs]


def new_layer(theirs: type[nn.Module]) -> nn.Module:
    """Return an empty layer of the class."""
    made = packing_class(theirs)
    return made.__new__(made)


def attach_layers(body: nn.Module, attentions: list[nn.Module], layers: str, attention: str) -> None:
    """Let attention ask its adapter, and the body's layers pack its batches.

    Args:
        body: the module that runs the layers.
        attentions: the layers' attention modules.
        layers: path of the layers in the body.
        attention: path of the attention in a layer.
    """
    attach_interface(body, attentions)
    if PACKS.get(body) is not None:
        return
    hooks = DecoderPacks(body, list(body.get_submodule(layers).children()), attention)
    for module in (body, *hooks.layers):
        PACKS.set(module, hooks)
    for layer in hooks.layers:
        layer.__class__ = packing_class(type(layer))


def detach_layers(body: nn.Module, attentions: list[nn.Module], layers: str, attention: str) -> None:
    """Let them be transformers' own again."""
    detach_interface(body, attentions)
    hooks = PACKS.pop(body)
    if hooks is None:
        return
    hooks.remove()
    theirs = {ours: theirs for theirs, ours in CLASSES.items()}
    for layer in hooks.layers:
        layer.__class__ = theirs.get(type(layer), type(layer))
        PACKS.pop(layer)


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
