"""Longformer's encoder over a run of documents without padding, and its attention there.

Shapes: B documents, P rows in front of each, N tokens of the padded texts, T real tokens of all, S = B P + T, G global
queries of a document, H heads, K head width, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutput,
    LongformerEncoder,
    LongformerLayer,
)

from foretoken.attention import Packed, Weighting, choose
from foretoken.attention.packed import PackedBatch, packed_batch_of
from foretoken.backbones.base import port_of
from foretoken.backbones.packing import entered, is_watched, may_pack, padded_front, reading_of, rows_of, trains

if TYPE_CHECKING:
    from foretoken.backbones.longformer.attention import WindowedSelfAttention


class PackingEncoder(LongformerEncoder):
    """Longformer's encoder, which packs its batch: the same parameters, outputs and calling convention.

    States of padding come out as zeros. Of the last layer, only the states that a head reads are computed where the
    head is known to read one.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        padding_len: int = 0,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        return_dict: bool = True,
    ) -> Any:
        """(B, P + N, D) -> (B, P + N - padding_len, D); the mask is below 0 for padding, above 0 for global tokens."""
        attentions = self.attentions()
        port = port_of(attentions[0])
        if output_attentions or attention_mask is None or not may_pack(self, port, hidden_states):
            return super().forward(
                hidden_states, attention_mask, padding_len, output_attentions, output_hidden_states, return_dict
            )
        rows = rows_of(port)
        text = attention_mask[:, rows:]
        stream = packed_batch_of(text < 0, text > 0, prefix_length=rows)
        recorded = []
        with entered(port, stream):
            hidden = stream.pack(hidden_states)
            last = self.for_last_layer(stream, attentions[-1]) if not output_hidden_states else stream
            for number, layer in enumerate(self.layer):
                if output_hidden_states:
                    recorded.append(stream.unpack(hidden))
                hidden = layer(hidden, attention_mask=last if number == len(self.layer) - 1 else stream)[0]
        if last.wanted is not None:
            states = padded_front(hidden, rows)
        else:
            states = stream.unpack(hidden)
            recorded = [state[:, : state.shape[1] - padding_len] for state in (*recorded, states)]
            states = recorded[-1]
        found = tuple(recorded) if output_hidden_states else None
        if not return_dict:
            return (states, found) if output_hidden_states else (states,)
        return LongformerBaseModelOutput(last_hidden_state=states, hidden_states=found)

    def attentions(self) -> list[WindowedSelfAttention]:
        """Return the layers' self-attentions."""
        layers: Any = self.layer
        return [layer.attention.self for layer in layers]

    def for_last_layer(self, stream: PackedBatch, attention: WindowedSelfAttention) -> PackedBatch:
        """Return the stream with what is wanted of the last layer's states: those that the head reads."""
        reading, local = reading_of(self), (attention.query, attention.key, attention.value)
        if reading is None or not reading.first or not packs_natively(attention) or is_watched(self.layer[-1]):
            return stream
        if torch.is_grad_enabled() and trains(local):
            return stream
        only = stream.first_tokens()
        return stream if only is None else replace(stream, wanted=only)


class PackingLayer(LongformerLayer):
    """Longformer's layer, which may be asked for the states of a few tokens alone."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | PackedBatch | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """(1, S, D) -> ((1, S, D),), or ((1, B, D),) where the stream wants one token of each document."""
        if not isinstance(attention_mask, PackedBatch):
            return super().forward(hidden_states, attention_mask, *args, **kwargs)
        if attention_mask.wanted is None:
            return (self.fed_forward(self.attention(hidden_states, attention_mask=attention_mask)[0]),)
        attended = self.attention.self(hidden_states, attention_mask=attention_mask)[0]
        states = attention_mask.split(hidden_states)[1].index_select(1, attention_mask.wanted)
        return (self.fed_forward(self.attention.output(attended, states)),)

    def fed_forward(self, attended: Tensor) -> Tensor:
        """(1, S, D) -> (1, S, D), in chunks where the config says so; S need be no multiple of the chunk."""
        parts = attended.split(self.chunk_size_feed_forward or attended.shape[1] or 1, dim=1)
        return torch.cat([self.ff_chunk(part) for part in parts], dim=1) if len(parts) > 1 else self.ff_chunk(attended)


def packs_natively(attention: WindowedSelfAttention) -> bool:
    """Tell whether an engine computes this attention packed; otherwise it is padded for the while."""
    port = port_of(attention)
    if port is not None and port.needs_keys:
        return False
    dropout = attention.dropout if attention.training else 0.0
    return choose.packs_natively(attention.query.weight.device, Weighting(dropout=dropout))


@dataclass(frozen=True)
class Question:
    """Queries of one document that ask all, or some, of its tokens.

    Attributes:
        queries: (G, D) hidden states.
        hidden: (1, M_i, D) what they ask.
        mask: (1, M) bool, True for what is seen; None: all.
    """

    queries: Tensor
    hidden: tuple[Tensor, ...]
    mask: Tensor | None


class PackedAttention:
    """The self-attention of one layer over a run of documents."""

    def __init__(self, attention: WindowedSelfAttention, stream: PackedBatch) -> None:
        self.attention = attention
        self.stream = stream

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """(1, S, D) -> (1, S, D), or (1, B, D) of the tokens that are wanted."""
        if not packs_natively(self.attention):
            return self.padded(hidden_states)
        rows, text = self.stream.split(hidden_states)
        port = port_of(self.attention)
        if port is not None and port.text_is_frozen:  # it was put side by side with rows that are trained
            text = text.detach()
        if self.stream.wanted is not None:
            out, after = self.chosen(rows, text, self.stream.wanted)
        else:
            out, after = self.everything(rows, text)
        self.attention.deliver(after)
        return out

    def padded(self, hidden_states: Tensor) -> Tensor:
        """Compute it with padding, and pack the result."""
        stream, port = self.stream, port_of(self.attention)
        spread = stream.unpack(hidden_states)
        masked, is_global = stream.masks()
        out = self.attention(spread, is_index_masked=masked, is_index_global_attn=is_global)[0]
        if port is not None:
            port.redeliver(stream.pack)
        return stream.pack(out)

    def everything(self, rows: Tensor, text: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the attention of all rows and tokens (1, S, D), and what is for after W_o."""
        attention, stream = self.attention, self.stream
        pair = None
        if stream.prefix_length:
            pair = attention.heads(attention.key(rows)), attention.heads(attention.value(rows))
        mask = Packed(attention.one_sided_attn_window_size, stream, pair)
        out, after = attention.attended(*attention.projected(text), mask=mask)
        everywhere = torch.cat([document.global_index for document in stream.documents])
        if not stream.prefix_length and not len(everywhere):
            return out, after
        questions = [self.asked_by_globals(number, rows, text) for number in range(stream.size)]
        answers, extra = self.answered(questions, is_global=True)
        return self.placed(out, answers, everywhere), None if after is None else self.placed(after, extra, everywhere)

    def placed(self, text: Tensor, answers: list[Tensor], everywhere: Tensor) -> Tensor:
        """Put the answers of rows and global tokens, (G, D) of each document, to where they belong: (1, S, D)."""
        rows = torch.stack([answer[: self.stream.prefix_length] for answer in answers])
        if len(everywhere):
            found = torch.cat([answer[self.stream.prefix_length :] for answer in answers])
            text = text.index_copy(1, everywhere, found[None].to(text.dtype))
        return self.stream.join(rows.to(text.dtype), text)

    def chosen(self, rows: Tensor, text: Tensor, only: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the attention of one token of each document (1, B, D), and what is for after W_o."""
        documents = list(enumerate(self.stream.documents))
        out: list[Any] = [None] * len(documents)
        after: list[Any] = [None] * len(documents)
        for is_global in (True, False):
            mine = [number for number, document in documents if document.opens_global is is_global]
            make = self.asked_by_global_first if is_global else self.asked_by_first
            questions = [make(number, rows, text, only[number : number + 1]) for number in mine]
            for number, answer, extra in zip(mine, *self.answered(questions, is_global=is_global), strict=True):
                out[number], after[number] = answer, extra
        return torch.cat(out)[None], None if after[0] is None else torch.cat(after)[None]

    def asked_by_globals(self, number: int, rows: Tensor, text: Tensor) -> Question:
        """Return what the rows and the global tokens of a document ask."""
        document = self.stream.documents[number]
        queries = torch.cat([rows[number], text[0].index_select(0, document.global_index)])
        return Question(queries, *self.whole(number, rows, text))

    def asked_by_global_first(self, number: int, rows: Tensor, text: Tensor, only: Tensor) -> Question:
        """Return what a document's first token asks where it is global."""
        return Question(text[0].index_select(0, only), *self.whole(number, rows, text))

    def asked_by_first(self, number: int, rows: Tensor, text: Tensor, only: Tensor) -> Question:
        """Return what a document's first token asks where it sees its window, the rows and the global tokens."""
        document = self.stream.documents[number]
        stop = min(document.stop, document.start + self.attention.one_sided_attn_window_size + 1)
        beyond = document.global_index[document.global_index >= stop]
        parts = (text[:, document.start : stop], text.index_select(1, beyond))
        masked = None if document.masked is None else document.masked[: stop - document.start]
        mask = masked if masked is None else torch.cat([masked, masked.new_zeros(len(beyond))])
        return Question(text[0].index_select(0, only), *self.with_rows(number, rows, parts, mask))

    def whole(self, number: int, rows: Tensor, text: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return all hidden states of a document and which of them are seen."""
        document = self.stream.documents[number]
        return self.with_rows(number, rows, (text[:, document.start : document.stop],), document.masked)

    def with_rows(
        self, number: int, rows: Tensor, parts: tuple[Tensor, ...], masked: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Put a document's rows before some of its hidden states, and turn (M,) ``masked`` into what is seen."""
        hidden = (rows[number : number + 1], *parts) if self.stream.prefix_length else parts
        if masked is None:
            return hidden, None
        return hidden, torch.cat([masked.new_ones(self.stream.prefix_length), ~masked])[None]

    def answered(self, questions: list[Question], *, is_global: bool) -> tuple[list[Tensor], list[Any]]:
        """Return each question's answer (G, D), and its vector (G, D) for after W_o or None."""
        attention = self.attention
        names = ("query_global", "key_global", "value_global") if is_global else ("query", "key", "value")
        query, key, value = (getattr(attention, name) for name in names)
        if not questions:
            return [], []
        sizes = [question.queries.shape[0] for question in questions]
        queries = attention.heads(query(torch.cat([question.queries for question in questions])[None]))
        out, after = [], []
        for part, question in zip(queries.split(sizes, dim=2), questions, strict=True):
            answer, extra = attention.answered(part, question.hidden, question.mask, key, value)
            out.append(answer[0])
            after.append(None if extra is None else extra[0])
        return out, after


def swap_encoder(encoder: nn.Module) -> None:
    """Let Longformer's encoder and its layers be of our classes: the same objects, names and weights."""
    encoder.__class__ = PackingEncoder
    for layer in encoder.layer:  # type: ignore[union-attr]
        layer.__class__ = PackingLayer


def restore_encoder(encoder: nn.Module) -> None:
    """Let them be transformers' own again."""
    encoder.__class__ = LongformerEncoder
    for layer in encoder.layer:  # type: ignore[union-attr]
        layer.__class__ = LongformerLayer
