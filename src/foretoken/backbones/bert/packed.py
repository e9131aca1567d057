"""BERT-type encoders over a run of documents without padding.

Linear maps and norms see the run; attention is padded for the while, as it is a small part at these lengths and every
method's columns, rows and masks work there as they do otherwise. Hooks of the encoder pack and unpack; only the layers
are of our classes, so that the last one can be asked for one token of each document.

Shapes: B documents, P rows in front of each, N tokens of the padded texts, S tokens of all with their rows, H heads, K
head width, D model width.
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
from foretoken.backbones.base import port_of
from foretoken.backbones.packing import entered, is_watched, may_pack, padded_front, reading_of, rows_of

HOOKS = "_foretoken_packing"  # where an encoder keeps its hooks


class FirstTokenLayer(nn.Module):
    """A layer that may be asked for the states of one token of each document."""

    attention: Any
    feed_forward_chunk: Any

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | PackedBatch | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """(1, S, D) -> (1, S, D), or (1, B, D) where the stream wants one token of each document."""
        if not isinstance(attention_mask, PackedBatch) or attention_mask.wanted is None:
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        stream, own = attention_mask, self.attention.self
        chosen = stream.split(hidden_states)[1].index_select(1, attention_mask.wanted)

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (own.num_attention_heads, own.attention_head_size)).transpose(1, 2)

        attended = packed_attention(
            own,
            heads(own.query(chosen)),
            heads(own.key(hidden_states)),
            heads(own.value(hidden_states)),
            stream,
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
        self.stream: PackedBatch | None = None
        self.context: AbstractContextManager[None] | None = None
        last = self.layers()[-1]
        self.handles = [
            encoder.register_forward_pre_hook(self.before, with_kwargs=True),
            last.register_forward_pre_hook(self.before_last, with_kwargs=True),
            # before the tuner's hook, which takes the rows away from padded states
            encoder.register_forward_hook(self.after, prepend=True, always_call=True),
        ]

    def layers(self) -> list[Any]:
        """Return the layers."""
        return list(self.encoder.get_submodule("layer").children())

    def before(self, encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pack the hidden states, and hand the stream down in the place of the mask."""
        reading, layers = reading_of(encoder), self.layers()
        if reading is None or not reading.is_plain or not args or layers[0].chunk_size_feed_forward:
            return None
        hidden, mask, own = args[0], kwargs.get("attention_mask"), layers[0].attention.self
        port, first = port_of(own), reading.first and not is_watched(layers[-1])
        if not may_pack(encoder, port, hidden) or (mask is None and not first):
            return None
        rows = rows_of(port)
        stream = self.stream = packed_batch_of(*text_masks(mask, hidden, rows), prefix_length=rows)
        if first and (only := stream.first_tokens()) is not None:
            self.stream = replace(stream, wanted=only)
        self.context = entered(port, stream)
        self.context.__enter__()
        return (stream.pack(hidden), *args[1:]), {**kwargs, "attention_mask": stream}

    def before_last(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tell the last layer what is wanted."""
        if self.stream is None or self.stream.wanted is None:
            return None
        if len(args) > 1:
            return (args[0], self.stream, *args[2:]), kwargs
        return args, {**kwargs, "attention_mask": self.stream}

    def after(self, encoder: nn.Module, args: Any, output: Any) -> Any:
        """Unpack the last hidden states; after a failed pass there are none."""
        stream, self.stream = self.stream, None
        if self.context is not None:
            context, self.context = self.context, None
            context.__exit__(None, None, None)
        if stream is None or output is None:
            return output
        packed = output["last_hidden_state"]
        output["last_hidden_state"] = (
            stream.unpack(packed) if stream.wanted is None else padded_front(packed, stream.prefix_length)
        )
        return output

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()


def text_masks(mask: Tensor | None, hidden: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return (B, N) bool masks of the texts, masked and global (none is), from the (B, 1, *, P + N) mask of a layer."""
    size, length = hidden.shape[0], hidden.shape[1] - rows
    nowhere = torch.zeros(size, length, dtype=torch.bool, device=hidden.device)
    if mask is None:
        return nowhere, nowhere
    return ~seen_by(mask)[:, 0, 0, rows:].expand(size, -1), nowhere


def attach_bert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its branch, and the encoder pack its batches; a decoder's stays as it is."""
    attach_interface(body, attentions)
    encoder: Any = body.get_submodule("encoder")
    if HOOKS in encoder.__dict__ or body.config.is_decoder:  # type: ignore[union-attr]
        return
    for layer in encoder.layer:
        layer.__class__ = OURS.get(type(layer), type(layer))
    encoder.__dict__[HOOKS] = EncoderHooks(encoder)


def detach_bert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    detach_interface(body, attentions)
    encoder: Any = body.get_submodule("encoder")
    hooks = encoder.__dict__.pop(HOOKS, None)
    if hooks is None:
        return
    hooks.remove()
    theirs = {ours: theirs for theirs, ours in OURS.items()}
    for layer in encoder.layer:
        layer.__class__ = theirs.get(type(layer), type(layer))
