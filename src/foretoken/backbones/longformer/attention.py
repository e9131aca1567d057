"""Longformer's self-attention, sliding window and global tokens, through :func:`foretoken.attention.attend`.

Shapes: B batch, N tokens, G global tokens of a document, M keys, H heads, K head width, D model width.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.attention import DenseMask, LinearMap, Mask, Projected, Weighting, Window, attend
from foretoken.attention.engines.projected import pays
from foretoken.backbones.base import ADAPTER, LINEAR_MAP, adapter_of, plain_map
from foretoken.backbones.masks import PrefixMask
from foretoken.errors import BackboneError
from foretoken.machine.tracing import is_exported

_LONGEST = 2**31  # tokens


class GlobalTokens:
    """Finds the global tokens of a batch once per forward pass; all layers of a model share one.

    One graph for all documents has as many places for them as the pass before it found.
    """

    def __init__(self) -> None:
        self.most = 0
        self._mask: Callable[[], Tensor | None] = lambda: None
        self._windows: dict[int, Window] = {}

    def window(self, is_global: Tensor, masked: Tensor, one_sided: int) -> Window:
        """Return the window of (B, N) masks; the layers of one pass all hand in the same tensors."""
        if self._mask() is not is_global:
            self._windows, self._mask = {}, weakref.ref(is_global)
        window = self._windows.get(one_sided)
        if window is None:
            found = is_global & ~masked
            self.most = self.most if is_exported() else int(found.sum(dim=1).max())
            window = Window(one_sided, ~masked, *global_positions(found, self.most))
            self._windows[one_sided] = window
        return window

    def __reduce__(self) -> tuple[type[GlobalTokens], tuple[()]]:
        """Let a copy of the model, and one read from a pickle, find its own."""
        return GlobalTokens, ()


class WindowedSelfAttention(LongformerSelfAttention):
    """Longformer's self-attention through :func:`foretoken.attention.attend`.

    The same parameters and calling convention as the class it stands in for; any length (no multiple of the window
    needed); extra score columns for the windowed and for the global queries. Attention maps are not returned.
    A prefix that enters after the masks were made is put into them as global tokens. While the adapters are disabled
    it is transformers' own.
    """

    global_tokens: GlobalTokens

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,  # its signs are in the two masks below
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:
        """(B, N, D) -> ((B, N, D),); masks (B, N), True for a masked or a global token."""
        if (adapter := ADAPTER.get(self)) is not None and adapter.rests:
            masks = (attention_mask, is_index_masked, is_index_global_attn, is_global_attn)
            return super().forward(hidden_states, *masks, output_attentions)
        if output_attentions:
            raise BackboneError(
                "Longformer with an adapter does not return attention maps; leave out output_attentions"
            )
        prefix = None if adapter is None else adapter.prefix_mask
        has_prefix = is_index_masked is not None and is_index_masked.shape[1] == hidden_states.shape[1]
        if prefix is not None and not has_prefix:  # an encoder that packs has put it into the masks
            is_index_masked = with_prefix(is_index_masked, ~prefix.mask, prefix)
            is_index_global_attn = with_prefix(is_index_global_attn, prefix.mask, prefix)
        window = self.window(is_index_masked, is_index_global_attn)
        out, after = self.attended(*self.projected(hidden_states), mask=window)
        if window.global_index.shape[1]:
            out, after = self.with_global_tokens(out, after, hidden_states, window)
        self.deliver(after)
        return (out * window.key_mask[..., None],)

    def deliver(self, after: Tensor | None) -> None:
        """Hand the adapter its vector for after the output projection."""
        if (adapter := adapter_of(self)) is not None:
            adapter.deliver(after)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> local queries, keys and values (B, H, N, K)."""
        return tuple(self.heads(part(hidden_states)) for part in (self.query, self.key, self.value))  # type: ignore[return-value]

    def attended(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with the adapter's part: (B, H, N, K) each -> (B, N, D), and a vector for after W_o."""
        scale, dropout = 1 / math.sqrt(self.head_dim), self.dropout if self.training else 0.0
        adapter = adapter_of(self)
        if adapter is None:
            weighting = Weighting(dropout=dropout)
            out, after = attend(query, key, value, scale=scale, mask=mask, weighting=weighting)[0], None
        else:
            out, after = adapter.attend(query, key, value, scale=scale, dropout=dropout, mask=mask)
        return out.transpose(1, 2).flatten(2), after

    def with_global_tokens(
        self, out: Tensor, after: Tensor | None, hidden_states: Tensor, window: Window
    ) -> tuple[Tensor, Tensor | None]:
        """Replace what the global tokens get: they see everything, through projections of their own."""
        index = window.global_index[..., None].expand(-1, -1, hidden_states.shape[-1])
        query = self.heads(self.query_global(hidden_states.gather(1, index)))
        found, found_after = self.attended_all(
            query, (hidden_states,), window.key_mask, self.key_global, self.value_global
        )
        if after is not None and found_after is not None:
            after = replaced(after, found_after, index, window.global_mask)
        return replaced(out, found, index, window.global_mask), after

    def attended_all(
        self, query: Tensor, hidden: tuple[Tensor, ...], mask: Tensor | None, key: nn.Module, value: nn.Module
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from few queries (B, H, G, K) to all of some hidden states (B, M_i, D), masked by (B, M)."""
        adapter = adapter_of(self)
        few = pays(query.shape[2], self.num_heads, hidden[0].shape[-1])
        key_map, value_map = (self.linear_map(part) if few else None for part in (key, value))
        if key_map is not None and value_map is not None and (adapter is None or not adapter.needs_keys):
            return self.attended(query, None, None, mask=Projected(hidden, key_map, value_map, mask=mask))
        keys, values = (torch.cat([self.heads(part(x)) for x in hidden], dim=2) for part in (key, value))
        return self.attended(query, keys, values, mask=DenseMask(None if mask is None else mask[:, None, None, :]))

    def linear_map(self, module: nn.Module) -> LinearMap | None:
        """Return the map that one of the projections is, LoRA and trained biases included; None where it is none."""
        if (adapter := ADAPTER.get(self)) is not None:
            return adapter.linear_map(module)
        is_hooked = module._forward_hooks or module._forward_pre_hooks
        return None if is_hooked else (LINEAR_MAP.get(self) or plain_map)(module)

    def heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, H, N, K)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def window(self, masked: Tensor | None, is_global: Tensor | None) -> Window:
        """Return the window of this call; LongformerEncoder always passes both masks."""
        assert masked is not None
        assert is_global is not None
        return self.global_tokens.window(is_global, masked, self.one_sided_attn_window_size)


def with_prefix(mask: Tensor | None, front: Tensor, prefix: PrefixMask) -> Tensor | None:
    """(B, N) and (B, P) -> (B, P + N), once per pass for the layers that share the mask."""
    assert mask is not None  # the encoder always makes both
    return prefix.remember(mask, lambda: torch.cat([front, mask], dim=1))


def replaced(x: Tensor, values: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    """Replace tokens of (B, N, D) by values (B, G, D), as far as they count (B, G)."""
    return x.scatter(1, index, torch.where(counts[..., None], values, x.gather(1, index)))


def global_positions(is_global: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(B, N) bool, at most G in a row -> positions (B, G), and which of them count; spare ones are of other tokens."""
    position = torch.arange(is_global.shape[1], device=is_global.device)
    index = (is_global.long() * _LONGEST - position).topk(most, dim=1).indices  # ONNX has no stable sort
    return index, is_global.gather(1, index)
