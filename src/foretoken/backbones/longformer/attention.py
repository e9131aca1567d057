"""Longformer: sliding window + global tokens, through an attention module of ours."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.attention import DenseMask, Mask, Projected, Weighting, Window, attend
from foretoken.attention.engines.projected import pays
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.base import (
    Attention,
    Backbone,
    Branch,
    Stack,
    branch_of,
    port_of,
    rests,
    text_dimensions,
)
from foretoken.backbones.bert.family import HEADS
from foretoken.backbones.longformer.packed import PackedAttention, restore_encoder, swap_encoder
from foretoken.backbones.masks import extend_text_mask
from foretoken.errors import BackboneError


class FoundGlobals:
    """Where the global tokens of the current batch are; found once per forward pass and shared by the layers."""

    def __init__(self) -> None:
        self._of: Callable[[], Tensor | None] = lambda: None
        self._found: dict[int, Window] = {}

    def of(self, is_global: Tensor, masked: Tensor, one_sided: int) -> Window:
        """Return the window of (B, N) masks; the layers of one pass all hand in the same tensors."""
        if self._of() is not is_global:
            self._found, self._of = {}, weakref.ref(is_global)
        window = self._found.get(one_sided)
        if window is None:
            window = Window(one_sided, ~masked, *global_positions(is_global & ~masked))
            self._found[one_sided] = window
        return window

    def __reduce__(self) -> tuple[type[FoundGlobals], tuple[()]]:
        """Let a copy of the model, and one read from a pickle, look for itself."""
        return FoundGlobals, ()


class WindowedSelfAttention(LongformerSelfAttention):
    """Longformer's self-attention through :func:`foretoken.attention.attend`.

    The same parameters and calling convention as the class it stands in for; any length (no multiple of the window
    needed); extra score columns for the windowed and for the global queries. Attention maps are not returned.
    While the adapters are disabled it is transformers' own.
    """

    found_globals: FoundGlobals

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | PackedBatch | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """(B, N, D) -> ((B, N, D),); masks (B, N), True for a masked or a global token. Packed: (1, S, D)."""
        if rests(self):
            masks = (attention_mask, is_index_masked, is_index_global_attn, is_global_attn)
            return super().forward(hidden_states, *masks, output_attentions)
        if output_attentions:
            raise BackboneError(
                "Longformer with an adapter does not return attention maps; leave out output_attentions"
            )
        if isinstance(attention_mask, PackedBatch):
            return (PackedAttention(self, attention_mask)(hidden_states),)
        window = self.window(is_index_masked, is_index_global_attn)
        out, after = self.attended(*self.projected(hidden_states), mask=window)
        if window.global_index.shape[1]:
            out, after = self.with_global_rows(out, after, hidden_states, window)
        self.deliver(after)
        return (out * window.key_mask[..., None],)

    def deliver(self, after: Tensor | None) -> None:
        """Hand the branch its vector for after the output projection."""
        if (branch := branch_of(self)) is not None:
            branch.deliver(after)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> local queries, keys and values (B, H, N, K)."""
        return tuple(self.heads(part(hidden_states)) for part in (self.query, self.key, self.value))  # type: ignore[return-value]

    def attended(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with the branch's part: (B, H, N, K) each -> (B, N, D), and a vector for after W_o."""
        scale, dropout = 1 / math.sqrt(self.head_dim), self.dropout if self.training else 0.0
        branch = branch_of(self)
        if branch is None:
            weighting = Weighting(dropout=dropout)
            out, after = attend(query, key, value, scale=scale, mask=mask, weighting=weighting)[0], None
        else:
            out, after = branch.attend(query, key, value, scale=scale, dropout=dropout, mask=mask)
        return out.transpose(1, 2).flatten(2), after

    def with_global_rows(
        self, out: Tensor, after: Tensor | None, hidden_states: Tensor, window: Window
    ) -> tuple[Tensor, Tensor | None]:
        """Replace the rows of the global tokens: they see everything, through projections of their own."""
        index = window.global_index[..., None].expand(-1, -1, hidden_states.shape[-1])
        query = self.heads(self.query_global(hidden_states.gather(1, index)))
        rows, rows_after = self.answered(query, (hidden_states,), window.key_mask, self.key_global, self.value_global)
        if after is not None and rows_after is not None:
            after = with_rows(after, rows_after, index, window.global_mask)
        return with_rows(out, rows, index, window.global_mask), after

    def answered(
        self, query: Tensor, hidden: tuple[Tensor, ...], mask: Tensor | None, key: nn.Module, value: nn.Module
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from few queries (B, H, G, K) to all of some hidden states (B, M_i, D), masked by (B, M)."""
        branch = branch_of(self)
        few = pays(query.shape[2], self.num_heads, hidden[0].shape[-1])
        plain = [plain_map(part, port_of(self)) for part in (key, value)]
        if few and (branch is None or not branch.needs_keys) and all(plain):
            maps: Any = {
                name: (part.weight, part.bias) for name, part in zip(("key", "value"), plain, strict=True) if part
            }
            return self.attended(query, None, None, mask=Projected(hidden, mask=mask, **maps))
        keys, values = (torch.cat([self.heads(part(x)) for x in hidden], dim=2) for part in (key, value))
        return self.attended(query, keys, values, mask=DenseMask(None if mask is None else mask[:, None, None, :]))

    def heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, H, N, K)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def window(self, masked: Tensor | None, is_global: Tensor | None) -> Window:
        """Return the window of this call; LongformerEncoder always passes both masks."""
        assert masked is not None
        assert is_global is not None
        return self.found_globals.of(is_global, masked, self.one_sided_attn_window_size)


def plain_map(module: nn.Module, port: Branch | None) -> nn.Linear | None:
    """Return the linear map that a module is, and nothing else: no LoRA or edit at work, no quantised weight."""
    inner = port.idle(module) if port is not None else module
    if port is None and (module._forward_hooks or module._forward_pre_hooks):
        return None
    return inner if isinstance(inner, nn.Linear) and is_plain(inner) else None


def is_plain(module: nn.Linear) -> bool:
    """Tell whether a linear map computes what its weight says."""
    is_parameter = type(module) is nn.Linear and type(module.weight) is nn.Parameter
    return is_parameter and module.weight.is_floating_point() and "forward" not in module.__dict__


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
    swap_encoder(body.get_submodule("encoder"))


def detach_windowed(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    for attention in attentions:
        del attention.found_globals
        attention.__class__ = LongformerSelfAttention
    restore_encoder(body.get_submodule("encoder"))


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
    first_token_heads=("ForSequenceClassification", "ForMultipleChoice"),
    projections=("query", "value", "query_global", "value_global"),
    dimensions=text_dimensions,
    attach_attention=attach_windowed,
    detach_attention=detach_windowed,
)
