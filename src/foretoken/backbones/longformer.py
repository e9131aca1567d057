"""Longformer: sliding window + global tokens, through an attention module of ours."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.attention import Window, attend
from foretoken.backbones.absolute import HEADS
from foretoken.backbones.base import Attention, Backbone, Stack, branch_of, text_dimensions
from foretoken.backbones.masks import extend_text_mask
from foretoken.errors import BackboneError


class FoundGlobals:
    """Where the global tokens of the current batch are; found once per forward pass and shared by the layers."""

    def __init__(self) -> None:
        self._of: Callable[[], Tensor | None] = lambda: None
        self._found: tuple[Tensor, Tensor] | None = None

    def of(self, is_global: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return :func:`global_positions` of a batch; the layers of one pass all hand in the same tensor."""
        if self._found is None or self._of() is not is_global:
            self._found = global_positions(is_global & ~masked)
            self._of = weakref.ref(is_global)
        return self._found

    def __reduce__(self) -> tuple[type[FoundGlobals], tuple[()]]:
        """Let a copy of the model, and one read from a pickle, look for itself."""
        return FoundGlobals, ()


class WindowedSelfAttention(LongformerSelfAttention):
    """Longformer's self-attention through :func:`foretoken.attention.attend`.

    The same parameters and calling convention as the class it stands in for; any length (no multiple of the window
    needed); extra score columns for the windowed and for the global queries. Attention maps are not returned.
    """

    found_globals: FoundGlobals

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """(B, N, D) -> ((B, N, D),); masks (B, N), True for a masked or a global token."""
        if output_attentions:
            raise BackboneError(
                "Longformer with an adapter does not return attention maps; leave out output_attentions"
            )
        window = self.window(is_index_masked, is_index_global_attn)
        out, after = self.attended(
            self.heads(self.query(hidden_states)),
            self.heads(self.key(hidden_states)),
            self.heads(self.value(hidden_states)),
            window=window,
        )
        if window.global_index.shape[1]:
            out, after = self.with_global_rows(out, after, hidden_states, window)
        if (branch := branch_of(self)) is not None:
            branch.deliver(after)
        return (out * window.key_mask[..., None],)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> tuple[Tensor, Tensor | None]:
        """Attention with the branch's part: (B, H, N, K) each -> (B, N, D), and a vector for after W_o."""
        scale, dropout = 1 / math.sqrt(self.head_dim), self.dropout if self.training else 0.0
        branch = branch_of(self)
        if branch is None:
            out, after = attend(query, key, value, scale=scale, dropout=dropout, **masks)[0], None
        else:
            out, after = branch.attend(query, key, value, scale=scale, dropout=dropout, **masks)
        return out.transpose(1, 2).flatten(2), after

    def with_global_rows(
        self, out: Tensor, after: Tensor | None, hidden_states: Tensor, window: Window
    ) -> tuple[Tensor, Tensor | None]:
        """Replace the rows of the global tokens: they see everything, through projections of their own."""
        index = window.global_index[..., None].expand(-1, -1, hidden_states.shape[-1])
        rows, rows_after = self.attended(
            self.heads(self.query_global(hidden_states.gather(1, index))),
            self.heads(self.key_global(hidden_states)),
            self.heads(self.value_global(hidden_states)),
            mask=window.key_mask[:, None, None, :],
        )
        if after is not None and rows_after is not None:
            after = with_rows(after, rows_after, index, window.global_mask)
        return with_rows(out, rows, index, window.global_mask), after

    def heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, H, N, K)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def window(self, masked: Tensor | None, is_global: Tensor | None) -> Window:
        """Return the window of this call; LongformerEncoder always passes both masks."""
        assert masked is not None
        assert is_global is not None
        index, mask = self.found_globals.of(is_global, masked)
        return Window(self.one_sided_attn_window_size, ~masked, index, mask)


def with_rows(x: Tensor, rows: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    """Replace rows of (B, N, D) by (B, G, D), as far as they count (B, G)."""
    return x.scatter(1, index, torch.where(counts[..., None], rows, x.gather(1, index)))


def global_positions(is_global: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N) bool -> positions (B, G) and which of them count (B, G); spare places point at non-global tokens."""
    most = int(is_global.sum(dim=1).max())
    index = is_global.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return index, is_global.gather(1, index)


def extend_longformer(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Make the rows in front global tokens; LongformerModel needs both masks then."""
    kwargs = extend_text_mask(kwargs, row_mask)
    text_global = kwargs.get("global_attention_mask")
    if text_global is None:
        tokens = kwargs["attention_mask"].shape[1] - row_mask.shape[1]
        text_global = kwargs["attention_mask"].new_zeros(row_mask.shape[0], tokens)
    rows_global = text_global.new_ones(row_mask.shape)
    return {**kwargs, "global_attention_mask": torch.cat([rows_global, text_global], dim=1)}


def attach_windowed(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let the attention modules be of our class: the same objects, names and weights, another forward."""
    found = FoundGlobals()
    for attention in attentions:
        attention.__class__ = WindowedSelfAttention
        attention.found_globals = found  # type: ignore[assignment]


def detach_windowed(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    for attention in attentions:
        del attention.found_globals
        attention.__class__ = LongformerSelfAttention


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
        ),
    ),
    heads=HEADS,
    pooled_heads=("ForMultipleChoice",),
    projections=("query", "value", "query_global", "value_global"),
    dimensions=text_dimensions,
    attach_attention=attach_windowed,
    detach_attention=detach_windowed,
)
