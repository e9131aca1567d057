"""BERT-type encoders over a run of documents without padding.

Linear maps and norms run without padding. Attention runs with padding: it is a small part at these lengths, and so the
columns, prefixes and masks of every method work unchanged. Hooks of the encoder pack and unpack; only the layers are of
our classes, so that the last one can compute only one token of each document.

Shapes: B documents, P prefix length, N tokens of the padded texts, S tokens of all documents with their prefixes, H
heads, K head width, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.camembert.modeling_camembert import CamembertLayer
from transformers.models.distilbert.modeling_distilbert import TransformerBlock
from transformers.models.electra.modeling_electra import ElectraLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLayer

from foretoken.attention.packed import PackedBatch
from foretoken.backbones.attention_interface import attach_interface, detach_interface, packed_attention
from foretoken.backbones.base import ADAPTER, facts_of
from foretoken.backbones.module_value import Arguments, Keywords, ModuleValue
from foretoken.backbones.packing import (
    HEAD_INPUTS,
    PackedPass,
    is_watched,
    masked_texts,
    may_pack,
    unpack_first_tokens,
    with_own_prefix,
)


@dataclass(frozen=True)
class EncoderPaths:
    """The paths of the modules that packing needs, in one family.

    Attributes:
        encoder: path of the encoder in the body.
        attention: path of the attention in a layer.
        chunked: path in a layer of the module with ``chunk_size_feed_forward``; empty for the layer itself.
    """

    encoder: str
    attention: str
    chunked: str = ""


BERT_PARTS = EncoderPaths("encoder", "attention.self")
DISTILBERT_PARTS = EncoderPaths("transformer", "attention", "ffn")


def attended_first(attention: Any, batch: PackedBatch, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(1, B, D) queries, (1, S, D) keys and values -> (1, B, D): the attention of the chosen tokens."""

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)

    dropout = attention.dropout.p if attention.training else 0.0
    attended = packed_attention(
        attention, heads(query), heads(key), heads(value), batch, scaling=attention.scaling, dropout=dropout
    )
    return attended.flatten(2)


class FirstTokenLayer(nn.Module):
    """A layer that computes the states of only one token of each document where the packed batch says so."""

    attention: Any
    feed_forward_chunk: Any

    def __call__(
        self, hidden_states: Tensor, attention_mask: Tensor | PackedBatch | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Pass the last layer the wanted tokens, before gradient checkpointing records its arguments."""
        hooks = HOOKS.get(self)
        if isinstance(attention_mask, PackedBatch) and hooks is not None and hooks.batch is not None:
            attention_mask = hooks.batch
        return super().__call__(hidden_states, attention_mask, *args, **kwargs)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | PackedBatch | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """(1, S, D) -> (1, S, D), or (1, B, D) where the batch wants one token of each document."""
        if not isinstance(attention_mask, PackedBatch) or attention_mask.wanted is None:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        return self.first_tokens(hidden_states, attention_mask, attention_mask.wanted)

    def first_tokens(self, hidden_states: Tensor, mask: PackedBatch, wanted: Tensor) -> Tensor:
        """(1, S, D) -> (1, B, D)."""
        # a head that reads the first token needs one query of each document, and the keys of all its tokens
        attention = self.attention.self
        batch = with_own_prefix(mask, attention)
        chosen = batch.split(hidden_states)[1].index_select(1, wanted)
        projected = attention.query(chosen), attention.key(hidden_states), attention.value(hidden_states)
        attended = attended_first(attention, batch, *projected)
        return self.feed_forward_chunk(self.attention.output(attended, chosen))


class PackingDistilBertLayer(FirstTokenLayer, TransformerBlock):
    """DistilBERT's."""

    def first_tokens(self, hidden_states: Tensor, mask: PackedBatch, wanted: Tensor) -> Tensor:
        """(1, S, D) -> (1, B, D)."""
        attention = self.attention
        batch = with_own_prefix(mask, attention)
        chosen = batch.split(hidden_states)[1].index_select(1, wanted)
        projected = attention.q_lin(chosen), attention.k_lin(hidden_states), attention.v_lin(hidden_states)
        x = self.sa_layer_norm(attention.out_lin(attended_first(attention, batch, *projected)) + chosen)
        return self.output_layer_norm(self.ffn(x) + x)


class PackingBertLayer(FirstTokenLayer, BertLayer):
    """BERT's."""


class PackingRobertaLayer(FirstTokenLayer, RobertaLayer):
    """RoBERTa's."""


class PackingXLMRobertaLayer(FirstTokenLayer, XLMRobertaLayer):
    """XLM-R's."""


class PackingCamembertLayer(FirstTokenLayer, CamembertLayer):
    """CamemBERT's."""


class PackingElectraLayer(FirstTokenLayer, ElectraLayer):
    """ELECTRA's."""


OURS: dict[type[nn.Module], type[nn.Module]] = {
    BertLayer: PackingBertLayer,
    RobertaLayer: PackingRobertaLayer,
    XLMRobertaLayer: PackingXLMRobertaLayer,
    CamembertLayer: PackingCamembertLayer,
    ElectraLayer: PackingElectraLayer,
    TransformerBlock: PackingDistilBertLayer,
}


class EncoderHooks(PackedPass):
    """Hooks that pack the input of an encoder, and unpack its output."""

    def __init__(self, encoder: nn.Module, parts: EncoderPaths) -> None:
        super().__init__(encoder)
        self.parts = parts
        self.handles = [
            encoder.register_forward_pre_hook(self.before, with_kwargs=True),
            # before the tuner's hook, which removes the prefix from padded states
            encoder.register_forward_hook(self.after, prepend=True, always_call=True),
        ]

    def layers(self) -> list[Any]:
        """Return the layers."""
        return list(self.encoder.get_submodule("layer").children())

    def attention(self, layer: nn.Module) -> nn.Module:
        """Return a layer's attention."""
        return layer.get_submodule(self.parts.attention)

    def before(self, encoder: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
        """Pack the hidden states, and pass the packed batch on instead of the mask."""
        inputs, layers = HEAD_INPUTS.get(encoder), self.layers()
        hidden = args[0] if args else kwargs.get("hidden_states")
        is_chunked = layers[0].get_submodule(self.parts.chunked).chunk_size_feed_forward
        # recorded states would be packed, and a feed-forward block in chunks needs a multiple of their size
        if inputs is None or not inputs.last_layer_only or hidden is None or is_chunked:
            return None
        mask, attention, last = kwargs.get("attention_mask"), self.attention(layers[0]), layers[-1]
        facts = facts_of(attention)
        first = inputs.first_token_only and isinstance(last, FirstTokenLayer) and not is_watched(last)
        if not may_pack(encoder, facts, hidden) or (mask is None and not first):
            return None
        nowhere = torch.zeros(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        masked = nowhere if mask is None else masked_texts(mask, hidden)
        batch = self.begin(ADAPTER.get(attention), masked)
        if first and (wanted := batch.first_tokens()) is not None:
            self.batch = replace(batch, wanted=wanted)
        kwargs = {**kwargs, "attention_mask": batch}
        if args:
            return (batch.pack_text(hidden), *args[1:]), kwargs
        return (), {**kwargs, "hidden_states": batch.pack_text(hidden)}

    def after(self, encoder: nn.Module, args: Any, output: Any) -> Any:
        """Unpack the last hidden states; a failed pass has none."""
        batch = self.batch
        self.end()
        if batch is None or output is None:
            return output
        batch = with_own_prefix(batch, self.attention(self.layers()[-1]))
        packed = output["last_hidden_state"]
        output["last_hidden_state"] = (
            batch.unpack(packed) if batch.wanted is None else unpack_first_tokens(packed, batch.prefix_length)
        )
        return output


HOOKS = ModuleValue[EncoderHooks]("foretoken_packing")  # on an encoder and on its last layer


def attach_packing(body: nn.Module, attentions: list[nn.Module], parts: EncoderPaths) -> None:
    """Let attention ask its adapter, and the encoder pack its batches; a decoder does not pack."""
    attach_interface(body, attentions)
    encoder: Any = body.get_submodule(parts.encoder)
    if HOOKS.get(encoder) is not None or getattr(body.config, "is_decoder", False):
        return
    for layer in encoder.layer:
        layer.__class__ = OURS.get(type(layer), type(layer))
    hooks = EncoderHooks(encoder, parts)
    for module in (encoder, encoder.layer[-1]):
        HOOKS.set(module, hooks)


def detach_packing(body: nn.Module, attentions: list[nn.Module], parts: EncoderPaths) -> None:
    """Undo :func:`attach_packing`."""
    detach_interface(body, attentions)
    encoder: Any = body.get_submodule(parts.encoder)
    hooks = HOOKS.pop(encoder)
    if hooks is None:
        return
    hooks.remove()
    HOOKS.pop(encoder.layer[-1])
    theirs = {ours: theirs for theirs, ours in OURS.items()}
    for layer in encoder.layer:
        layer.__class__ = theirs.get(type(layer), type(layer))
