"""BERT-type encoders over a run of documents without padding.

Linear maps and norms run without padding. Attention runs with it: it is a small part at these lengths, and the columns,
prefixes and masks of every method work there as they do otherwise. Hooks of the encoder pack and unpack; only the
layers are of our classes, so that the last one can compute one token of each document alone.

Shapes: B documents, P prefix length, N tokens of the padded texts, S tokens of all documents with their prefixes, H
heads, K head width, D model width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.camembert.modeling_camembert import CamembertLayer
from transformers.models.electra.modeling_electra import ElectraLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLayer

from foretoken.attention.kernels import seen_by
from foretoken.attention.packed import PackedBatch, packed_batch_of
from foretoken.backbones.attention_interface import attach_interface, detach_interface, packed_attention
from foretoken.backbones.base import ADAPTER
from foretoken.backbones.module_value import Arguments, Keywords, ModuleValue
from foretoken.backbones.packing import (
    HEAD_INPUTS,
    is_watched,
    may_pack,
    prefix_length_of,
    prefix_mask_of,
    unpack_first_tokens,
    while_packed,
    with_own_prefix,
)


class FirstTokenLayer(nn.Module):
    """A layer that computes the states of one token of each document alone where the packed batch says so."""

    attention: Any
    feed_forward_chunk: Any

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | PackedBatch | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """(1, S, D) -> (1, S, D), or (1, B, D) where the batch wants one token of each document."""
        if not isinstance(attention_mask, PackedBatch) or attention_mask.wanted is None:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        own = self.attention.self
        batch = with_own_prefix(attention_mask, own)
        chosen = batch.split(hidden_states)[1].index_select(1, attention_mask.wanted)

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (own.num_attention_heads, own.attention_head_size)).transpose(1, 2)

        attended = packed_attention(
            own,
            heads(own.query(chosen)),
            heads(own.key(hidden_states)),
            heads(own.value(hidden_states)),
            batch,
            scaling=own.scaling,
            dropout=own.dropout.p if own.training else 0.0,
        )
        return self.feed_forward_chunk(self.attention.output(attended.flatten(2), chosen))


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
}


class EncoderHooks:
    """Pack what enters an encoder, and unpack what leaves it."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder
        self.batch: PackedBatch | None = None
        self.context: AbstractContextManager[None] | None = None
        last = self.layers()[-1]
        self.handles = [
            encoder.register_forward_pre_hook(self.before, with_kwargs=True),
            last.register_forward_pre_hook(self.before_last, with_kwargs=True),
            # before the tuner's hook, which removes the prefix from padded states
            encoder.register_forward_hook(self.after, prepend=True, always_call=True),
        ]

    def layers(self) -> list[Any]:
        """Return the layers."""
        return list(self.encoder.get_submodule("layer").children())

    def before(self, encoder: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
        """Pack the hidden states, and pass the packed batch on in the place of the mask."""
        inputs, layers = HEAD_INPUTS.get(encoder), self.layers()
        if inputs is None or not inputs.last_layer_only or not args or layers[0].chunk_size_feed_forward:
            return None
        hidden, mask, own = args[0], kwargs.get("attention_mask"), layers[0].attention.self
        adapter, last = ADAPTER.get(own), layers[-1]
        first = inputs.first_token_only and isinstance(last, FirstTokenLayer) and not is_watched(last)
        if not may_pack(encoder, adapter, hidden) or (mask is None and not first):
            return None
        length = prefix_length_of(adapter)
        masks, of_prefix = text_masks(mask, hidden, length), prefix_mask_of(adapter)
        batch = self.batch = packed_batch_of(*masks, prefix_length=length, prefix_mask=of_prefix)
        if first and (wanted := batch.first_tokens()) is not None:
            self.batch = replace(batch, wanted=wanted)
        self.context = while_packed(adapter, batch)
        self.context.__enter__()
        return (batch.pack(hidden), *args[1:]), {**kwargs, "attention_mask": batch}

    def before_last(self, layer: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
        """Tell the last layer what is wanted."""
        if self.batch is None or self.batch.wanted is None:
            return None
        if len(args) > 1:
            return (args[0], self.batch, *args[2:]), kwargs
        return args, {**kwargs, "attention_mask": self.batch}

    def after(self, encoder: nn.Module, args: Any, output: Any) -> Any:
        """Unpack the last hidden states; after a failed pass there are none."""
        batch, self.batch = self.batch, None
        if self.context is not None:
            context, self.context = self.context, None
            context.__exit__(None, None, None)
        if batch is None or output is None:
            return output
        batch = with_own_prefix(batch, self.layers()[-1].attention.self)
        packed = output["last_hidden_state"]
        output["last_hidden_state"] = (
            batch.unpack(packed) if batch.wanted is None else unpack_first_tokens(packed, batch.prefix_length)
        )
        return output

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()


HOOKS = ModuleValue[EncoderHooks]("foretoken_packing")


def text_masks(mask: Tensor | None, hidden: Tensor, prefix_length: int) -> tuple[Tensor, Tensor]:
    """Return (B, N) bool masks of the texts, masked and global (none is), from the (B, 1, *, P + N) mask of a layer."""
    size, length = hidden.shape[0], hidden.shape[1] - prefix_length
    nowhere = torch.zeros(size, length, dtype=torch.bool, device=hidden.device)
    if mask is None:
        return nowhere, nowhere
    return ~seen_by(mask)[:, 0, 0, prefix_length:].expand(size, -1), nowhere


def attach_bert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its adapter, and the encoder pack its batches; a decoder's stays as it is."""
    attach_interface(body, attentions)
    encoder: Any = body.get_submodule("encoder")
    if HOOKS.get(encoder) is not None or body.config.is_decoder:  # type: ignore[union-attr]
        return
    for layer in encoder.layer:
        layer.__class__ = OURS.get(type(layer), type(layer))
    HOOKS.set(encoder, EncoderHooks(encoder))


def detach_bert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    detach_interface(body, attentions)
    encoder: Any = body.get_submodule("encoder")
    hooks = HOOKS.pop(encoder)
    if hooks is None:
        return
    hooks.remove()
    theirs = {ours: theirs for theirs, ours in OURS.items()}
    for layer in encoder.layer:
        layer.__class__ = theirs.get(type(layer), type(layer))
