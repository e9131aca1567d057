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

from foretoken.attention import AttentionCall, DenseMask, LinearMap, Mask, Projected, Weighting, Window
from foretoken.attention.engines.projected import pays
from foretoken.backbones.base import ADAPTER, LINEAR_MAP, PassFacts, facts_of
from foretoken.backbones.fast_maps import plain_map
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
        facts = facts_of(self)
        if facts.rests:
            masks = (attention_mask, is_index_masked, is_index_global_attn, is_global_attn)
            return super().forward(hidden_states, *masks, output_attentions)
        if output_attentions:
            raise BackboneError(
                "Longformer with an adapter does not return attention maps; leave out output_attentions"
            )
        prefix = facts.prefix_mask
        has_prefix = is_index_masked is not None and is_index_masked.shape[1] == hidden_states.shape[1]
        if prefix is not None and not has_prefix:  # an encoder that packs has put it into the masks
            is_index_masked = with_prefix(is_index_masked, ~prefix.mask, prefix)
            is_index_global_attn = with_prefix(is_index_global_attn, prefix.mask, prefix)
        window = self.window(is_index_masked, is_index_global_attn)
        out, after = self.attended(facts, *self.projected(hidden_states), mask=window)  # (B, N, D) each
        if window.global_index.shape[1]:
            out, after = self.with_global_tokens(facts, out, after, hidden_states, window)
        self.deliver(facts, after)
        return (out * window.key_mask[..., None],)

    def deliver(self, facts: PassFacts, after: Tensor | None) -> None:
        """Hand the adapter its vector for after the output projection."""
        if facts.has_part and (adapter := ADAPTER.get(self)) is not None:
            adapter.deliver(after)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> local queries, keys and values (B, H, N, K)."""
        return tuple(self.heads(part(hidden_states)) for part in (self.query, self.key, self.value))  # type: ignore[return-value]

    def attended(
        self, facts: PassFacts, query: Tensor, key: Tensor | None, value: Tensor | None, *, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with the adapter's part: (B, H, N, K) each -> (B, N, D), and a vector for after W_o."""
        scale, weighting = 1 / math.sqrt(self.head_dim), Weighting(dropout=self.dropout if self.training else 0.0)
        call, adapter = AttentionCall(query, key, value, scale, mask, weighting), ADAPTER.get(self)
        # a prefix among the keys is no part of the adapter's: with prefix-propagation alone nobody is asked here
        out, after = (call.attend()[0], None) if adapter is None or not facts.has_part else adapter.attend(call)
        return out.transpose(1, 2).flatten(2), after

    def with_global_tokens(
        self, facts: PassFacts, out: Tensor, after: Tensor | None, hidden_states: Tensor, window: Window
    ) -> tuple[Tensor, Tensor | None]:
        """Replace what the global tokens get: they see everything, through projections of their own."""
        index = window.global_index[..., None].expand(-1, -1, hidden_states.shape[-1])
        query = self.heads(self.query_global(hidden_states.gather(1, index)))  # (B, H, G, K)
        projections = self.key_global, self.value_global
        few = pays(query.shape[2], self.num_heads, hidden_states.shape[-1])
        maps = self.linear_maps(facts, projections) if few else None
        found, found_after = self.attended_all(
            facts, query, (hidden_states,), window.key_mask, projections=projections, maps=maps
        )
        if after is not None and found_after is not None:
            after = replaced(after, found_after, index, window.global_mask)
        return replaced(out, found, index, window.global_mask), after

    def attended_all(
        self,
        facts: PassFacts,
        query: Tensor,
        hidden: tuple[Tensor, ...],
        mask: Tensor | None,
        *,
        projections: tuple[nn.Module, nn.Module],
        maps: tuple[LinearMap, LinearMap] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from queries (B, H, G, K) to all of some hidden states (B, M_i, D), masked by (B, M).

        With ``maps``, which are what the two projections are, keys and values are not computed: few queries need none.
        """
        if maps is not None:
            return self.attended(facts, query, None, None, mask=Projected(hidden, *maps, mask=mask))
        # (B, H, M, K) each
        keys, values = (torch.cat([self.heads(part(x)) for x in hidden], dim=2) for part in projections)
        dense = DenseMask(None if mask is None else mask[:, None, None, :])
        return self.attended(facts, query, keys, values, mask=dense)

    def linear_maps(
        self, facts: PassFacts, projections: tuple[nn.Module, nn.Module]
    ) -> tuple[LinearMap, LinearMap] | None:
        """Return the maps that two projections are; None where one is none, or an adapter needs the keys themselves."""
        if facts.needs_keys:
            return None
        key, value = map(self.linear_map, projections)
        return None if key is None or value is None else (key, value)

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
