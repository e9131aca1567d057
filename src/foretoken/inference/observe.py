"""How much of a model's attention goes to an adapter's prefix, measured while the model runs as usual.

The mass of an attention is the share of its softmax that a query gives to what the adapter added: the prefix and the
score columns. :func:`foretoken.attention.attend` itself computes it, so that windows, global tokens, blocks and grouped
queries are as in the model.

Shapes: B batch, N queries, M keys, P length of the prefix, H heads, K head width, X extra columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from foretoken.attention import ExtraColumns, Mask, Window, attend
from foretoken.backbones.base import ADAPTER
from foretoken.errors import AdapterError
from foretoken.methods.base import SeparatePrefix
from foretoken.methods.prefix_tuning import PrefixColumns
from foretoken.methods.selective_prefix_tuning import SoftMask
from foretoken.tuner.attention.adapter import TunedAttention
from foretoken.tuner.attention.columns import AdapterColumns, BatchColumns, scored_query
from foretoken.tuner.forward.plan import Plan

SCORE_EDGES = tuple(edge / 20 for edge in range(-200, 201))  # of the histogram of a selective prefix's scores


@dataclass
class Selected:
    """What the soft mask of a selective prefix does in one attention: sums over the text's queries.

    Attributes:
        mask: the soft mask.
        gates: (H,) sum over queries and prefix of ``m(s) = sigmoid(alpha s)``.
        entries: how many gates each of these sums has.
        counts: how many scores lie between two of :data:`SCORE_EDGES`; what lies beyond is in the last ones.
    """

    mask: SoftMask
    gates: Tensor | float = 0.0
    entries: int = 0
    counts: Tensor | float = 0.0

    def add(self, scores: Tensor) -> None:
        """Add the (Q, H, P) scores of Q queries."""
        self.gates = self.gates + self.mask.gates(scores).double().sum(dim=(0, 2)).cpu()
        self.entries += scores.shape[0] * scores.shape[2]
        inside = scores.float().clamp(SCORE_EDGES[0], SCORE_EDGES[-1]).cpu()
        self.counts = self.counts + torch.histogram(inside, torch.tensor(SCORE_EDGES)).hist


@dataclass
class Observed:
    """What was measured in one attention.

    Attributes:
        layer: the layer's number in its stack.
        stack: which stack: an encoder-decoder has two.
        is_cross: the attention of a decoder to its encoder.
        mass: (H,) sum over the text's queries of their mass on the prefix.
        queries: the number of these queries.
        selected: sums of a selective prefix's mask; None for another method.
    """

    layer: int
    stack: int
    is_cross: bool
    mass: Tensor | float = 0.0
    queries: int = 0
    selected: Selected | None = None


@dataclass
class Watch:
    """What is measured of one model.

    Attributes:
        text: (B, N) mask of the batch that runs, True for a token and False for padding.
        stack: the stack that reads this text, the first one; in a decoder all queries count.
        seen: what was measured, by attention and in the order of the calls.
    """

    text: Tensor | None = None
    stack: int | None = None
    seen: dict[int, Observed] = field(default_factory=dict)


class MassObserver:
    """Measures one attention: a :class:`foretoken.tuner.attention.adapter.AttentionObserver`.

    Attributes:
        watch: where the sums go.
        waiting: the window of Longformer's last call and its (B, N) mask of the text, until its global tokens follow.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.waiting: tuple[Window, Tensor] | None = None

    def note(
        self, attention: TunedAttention, plan: Plan, query: Tensor, key: Tensor, *, scale: float, mask: Mask
    ) -> None:
        """Add the mass of the text's queries in (B, H, N, K)."""
        is_text = self.text_queries(attention, query, mask if isinstance(mask, Window) else None)
        length = plan.prefix_here if not attention.is_cross else 0
        columns = columns_of(attention, plan, query)
        if not length and not columns:
            return
        mass = mass_on_prefix(query, key, columns, length=length, scale=scale, mask=mask)
        new = Observed(attention.layer, id(attention.pass_state), attention.is_cross)
        seen = self.watch.seen.setdefault(id(attention), new)
        seen.mass = seen.mass + mass.transpose(1, 2)[is_text].double().sum(dim=0).cpu()
        seen.queries += int(is_text.sum())
        for one in columns:
            if not isinstance(one, AdapterColumns) or not isinstance(one.columns, PrefixColumns):
                continue
            if isinstance(one.columns.score_mask, SoftMask):
                seen.selected = seen.selected or Selected(one.columns.score_mask)
                own = one.group.take(scored_query(query, one.rotation))
                seen.selected.add(one.columns.unmasked_scores(own, scale).transpose(1, 2)[is_text])

    def text_queries(self, attention: TunedAttention, query: Tensor, window: Window | None) -> Tensor:
        """Return which of the (B, H, N, K) queries are tokens of the text, (B, N) bool.

        Longformer computes its global tokens in a second call: they do not count in the first.
        """
        if window is None and self.waiting is not None:
            (window, is_text), self.waiting = self.waiting, None
            return window.global_mask & is_text.gather(1, window.global_index)
        is_text = self.in_text(attention, query)
        if window is None or not window.global_index.shape[1]:
            return is_text
        self.waiting = window, is_text
        return is_text & ~torch.zeros_like(is_text).scatter(1, window.global_index, window.global_mask)

    def in_text(self, attention: TunedAttention, query: Tensor) -> Tensor:
        """Return (B, N) bool, False for the prefix and for padding."""
        text, first = self.watch.text, 0 if attention.is_cross else attention.prefix_length
        is_text = query.new_zeros(query.shape[0], query.shape[2], dtype=torch.bool)
        stack = id(attention.pass_state)
        self.watch.stack = stack if self.watch.stack is None else self.watch.stack
        if self.watch.stack != stack or text is None:
            is_text[:, first:] = True
        else:  # Longformer and BigBird have padded the text to a multiple of their own
            is_text[:, first : first + text.shape[1]] = text
        return is_text


@contextmanager
def observing(model: nn.Module) -> Iterator[Watch]:
    """Measure the attentions of a model while it runs; set ``text`` to the mask of each batch before its pass."""
    watch = Watch()
    adapters = [ADAPTER.get(module) for module in model.modules()]
    attentions = [adapter for adapter in adapters if isinstance(adapter, TunedAttention)]
    for attention in attentions:
        attention.observer = MassObserver(watch)
    try:
        yield watch
    finally:
        for attention in attentions:
            attention.observer = None


def columns_of(attention: TunedAttention, plan: Plan, query: Tensor) -> list[BatchColumns]:
    """Return the score columns of the adapters at work.

    Raises:
        AdapterError: the prefix has a normalisation of its own.
    """
    if any(has_own_softmax(separate, query) for _, separate in attention.separate()):
        raise AdapterError(
            "kernel-propagation attends to its prefix apart from the text: the two share no softmax, so there "
            "is no mass to measure; analyse a run with alpha_scope: lambda, or of another method"
        )
    cached = attention.cached_prefix(plan)
    return [*([] if cached is None else [cached]), *attention.columns()]


def mass_on_prefix(
    query: Tensor, key: Tensor, columns: list[BatchColumns], *, length: int, scale: float, mask: Mask
) -> Tensor:
    """Return the share (B, H, N) of each query's softmax on the first ``length`` keys and on the columns.

    ``sum_x p_x`` of the columns is what :func:`attend` returns beside its output. The probabilities of the prefix are
    summed by values that are one at the prefix and zero at the text.
    """
    on_prefix = torch.zeros_like(key)
    on_prefix[:, :, :length, 0] = 1.0
    scores = [one.scores(query, scale) for one in columns]
    extra = ExtraColumns(torch.cat(scores, dim=-1) if scores else None)
    out, p_extra = attend(query, key, on_prefix, scale=scale, mask=mask, columns=extra)
    return out[..., 0] if p_extra is None else out[..., 0] + p_extra.sum(dim=-1)


def has_own_softmax(separate: SeparatePrefix, query: Tensor) -> bool:
    """Tell whether the prefix is weighted by anything but the softmax that it would share with the text."""
    is_exponential = (separate.kernel, separate.text_kernel) == ("exponential", "exponential")
    return not is_exponential or separate.global_alpha is not None or separate.weight(query) is not None
