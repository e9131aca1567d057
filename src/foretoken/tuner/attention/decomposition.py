"""Attention to the text and attention to the prefix, normalised separately (kernel decomposition).

Li et al. 2023, eq. 7: ``H = Kern(Q, C W_k, C W_v) + alpha Kern(Q, P W_k, P W_v)``.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, G global keys, D model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foretoken.attention import Mask, Packed, Weighting, Window, causal_mask
from foretoken.attention.kernels import kernel_attention
from foretoken.attention.packed import Document
from foretoken.methods.sites import SeparatePrefix
from foretoken.tuner.attention.columns import (
    AdapterColumns,
    BatchColumns,
    LambdaColumn,
    PrefixKeys,
    attend_columns,
    in_shared_places,
)
from foretoken.tuner.forward.plan import Group, Phase, Plan


def attend_decomposed(
    plan: Plan,
    cached: PrefixKeys | None,
    columns: Sequence[AdapterColumns],
    separate: Sequence[tuple[Group, SeparatePrefix]],
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    scale: float,
    mask: Mask,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """Let the documents of ``separate`` attend to text and prefix separately, all others as they do otherwise."""
    if all(group.index is None for group, _ in separate):
        own = [member for _, member in separate]
        return attend_separately(
            plan, cached, columns, own, query, key, value, scale=scale, mask=mask, dropout=weighting.dropout
        )
    everything = [*([] if cached is None else [cached]), *in_shared_places(columns, query)]
    out, after = attend_columns(everything, query, key, value, scale=scale, mask=mask, weighting=weighting)
    for adapter in dict.fromkeys(group.adapter for group, _ in separate):
        group = next(group for group, _ in separate if group.adapter == adapter)
        new, more = attend_separately(
            of_group(plan, group),
            None if cached is None else cached.of(group),
            [one.alone() for one in columns if one.group.adapter == adapter],
            [member for other, member in separate if other.adapter == adapter],
            group.take(query),
            *(None if x is None else group.take(x) for x in (key, value)),
            scale=scale,
            mask=mask if group.index is None else mask.take(group.index),
            dropout=weighting.dropout,
        )
        out = group.put(out, new)
        if more is not None:
            after = group.put(query.new_zeros(query.shape[0], *more.shape[1:]) if after is None else after, more)
    return out, after


def attend_separately(
    plan: Plan,
    cached: PrefixKeys | None,
    columns: Sequence[BatchColumns],
    separate: Sequence[SeparatePrefix],
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    scale: float,
    mask: Mask,
    dropout: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention to the text, with the attentions to the prefix and to global keys added."""
    of_text = Weighting(separate[0].text_kernel, dropout)
    prefix = prefix_keys(plan, query, key, value, mask) if cached is None else cached
    mask, key, value = mask.without_prefix(plan.prefix_here, key, value)
    lambdas = [LambdaColumn(prefix, scale) for own in separate if own.weight(query) is None]
    after: Tensor | None = None
    if key is None or key.shape[2] or columns:
        local = mask.without_globals() if separate[0].global_alpha is not None and isinstance(mask, Window) else mask
        out, after = attend_columns([*columns, *lambdas], query, key, value, scale=scale, mask=local, weighting=of_text)
    elif lambdas:  # nothing but the prefix: lambda is 1
        out = prefix.attended(query, kernel="exponential", scale=scale, dropout=dropout)
    else:
        out = torch.zeros_like(query)
    for own in separate:
        if (weight := own.weight(query)) is not None:
            attended = prefix.attended(
                query, kernel=own.kernel, scale=scale, dropout=dropout, projection=own.projection
            )
            out = torch.addcmul(out, weight, attended)
        if own.global_alpha is not None and isinstance(mask, Window) and key is not None and value is not None:
            out = out + own.global_alpha * global_attention(query, key, value, mask, scale, of_text)
    return out, after


@dataclass(frozen=True)
class PackedPrefixKeys(PrefixKeys):
    """The prefixes (B, H, P, K) of documents that lie one after another in a run: queries are (1, H, T, K).

    Attributes:
        documents: where they lie.
    """

    documents: tuple[Document, ...] = ()

    def each(self, query: Tensor) -> Iterator[tuple[PrefixKeys, Tensor]]:
        """Yield every document's prefix and its queries."""
        for number, document in enumerate(self.documents):
            own = self.key[number : number + 1], self.value[number : number + 1]
            yield PrefixKeys(*own, None), query[:, :, document.start : document.stop]

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(1, H, T, K) -> (1, H, T, P)."""
        return torch.cat([own.scores(part, scale) for own, part in self.each(query)], dim=2)

    def attended(
        self, query: Tensor, *, kernel: str, scale: float, dropout: float, projection: Tensor | None = None
    ) -> Tensor:
        """Return the attention of each document to its prefix alone: (1, H, T, K)."""
        parts = [
            own.attended(part, kernel=kernel, scale=scale, dropout=dropout, projection=projection)
            for own, part in self.each(query)
        ]
        return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]


def prefix_keys(plan: Plan, query: Tensor, key: Tensor | None, value: Tensor | None, mask: Mask) -> PrefixKeys:
    """Return the keys and values of a prefix that stands before the text: the first P of the sequence."""
    here = plan.prefix_here
    pair = mask.prefix_keys(here, query.shape[1], key, value)
    if isinstance(mask, Packed):
        return PackedPrefixKeys(*pair, None, documents=mask.batch.documents)
    seen = prefix_mask(plan, query.device)
    return PrefixKeys(*pair, seen)


def prefix_mask(plan: Plan, device: torch.device) -> Tensor | None:
    """Return which of the prefix's keys are seen, broadcastable to (B, 1, N, P); None for all."""
    here = plan.prefix_here
    mask = None if plan.has_whole_prefix else plan.prefix_mask()[:, None, None]
    if plan.phase is Phase.PREFIX_ONLY:
        earlier = causal_mask(here, here, device)
        mask = earlier if mask is None else mask & earlier
    return mask


def global_attention(
    query: Tensor, key: Tensor, value: Tensor, window: Window, scale: float, weighting: Weighting
) -> Tensor:
    """Return the attention to the text's global keys alone: (B, H, N, K)."""
    key, value, mask = window.global_keys(key), window.global_keys(value), window.global_mask[:, None, None]
    kernel, dropout = weighting.kernel, weighting.dropout
    return kernel_attention(query, key, value, kernel=kernel, scale=scale, mask=mask, dropout=dropout)


def of_group(plan: Plan, group: Group) -> Plan:
    """Return the plan as one group's documents see it."""
    size = 0 if group.index is None else group.index.shape[0]
    return replace(plan, groups=(replace(group, index=None, is_whole=False),), batch_size=size)
