"""What a prefix takes of a model's attention: seen from beside it, while the model runs as it does anyhow.

The mass of an attention is the share of its softmax that a query gives to what the adapter brought: the rows in front
of the text, and the score columns. It is asked of :func:`foretoken.attention.attend` itself, so that windows, global
tokens, blocks and grouped queries are as in the model.

Shapes: B batch, N queries, M keys, P rows in front of the text, H heads, K head width, X extra columns.
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
from foretoken.methods.prefix_tuning import PrefixBranch
from foretoken.methods.selective_prefix_tuning import SelectiveBranch
from foretoken.tuner.attention.adapter import AttentionAdapter
from foretoken.tuner.attention.columns import Columns, Part
from foretoken.tuner.attention.decomposition import SeparateColumns
from foretoken.tuner.attention.rotation import met_by
from foretoken.tuner.forward.plan import Phase, Plan

SCORE_EDGES = tuple(edge / 20 for edge in range(-200, 201))  # of the histogram of a selective prefix's scores


@dataclass
class Selected:
    """What the soft mask of a selective prefix does in one attention: sums over the text's queries.

    Attributes:
        alpha: steepness of the mask.
        gates: (H,) sum over queries and prefix of ``m(s) = sigmoid(alpha s)``.
        entries: how many gates each of these sums has.
        counts: how many scores lie between two of :data:`SCORE_EDGES`; what lies beyond is in the last ones.
    """

    alpha: float
    gates: Tensor | float = 0.0
    entries: int = 0
    counts: Tensor | float = 0.0

    def add(self, scores: Tensor) -> None:
        """Add the (Q, H, P) scores of Q queries."""
        self.gates = self.gates + torch.sigmoid(self.alpha * scores).double().sum(dim=(0, 2)).cpu()
        self.entries += scores.shape[0] * scores.shape[2]
        inside = scores.float().clamp(SCORE_EDGES[0], SCORE_EDGES[-1]).cpu()
        self.counts = self.counts + torch.histogram(inside, torch.tensor(SCORE_EDGES)).hist


@dataclass
class Observed:
    """What was seen in one attention.

    Attributes:
        layer: the layer's number in its stack.
        stack: which stack: an encoder-decoder has two.
        is_cross: the attention of a decoder to its encoder.
        mass: (H,) sum over the text's queries of what they give to the prefix.
        queries: how many queries that are.
        selected: the same for the mask of a selective prefix; None for another method.
    """

    layer: int
    stack: int
    is_cross: bool
    mass: Tensor | float = 0.0
    queries: int = 0
    selected: Selected | None = None


@dataclass
class Watch:
    """What is seen of one model.

    Attributes:
        text: (B, N) mask of the batch that runs, True for a token and False for padding.
        stack: the stack that reads this text, the first one; a decoder's queries all count.
        seen: by attention, in the order in which the model asks them.
    """

    text: Tensor | None = None
    stack: int | None = None
    seen: dict[int, Observed] = field(default_factory=dict)


class ObservedAdapter(AttentionAdapter):
    """A port that notes what its columns and rows get, and changes nothing.

    It asks for what the measurement needs: documents that are not packed, and keys that are computed.
    """

    watch: Watch
    waiting: tuple[Window, Tensor] | None = None  # global tokens yet to be answered, with the (B, N) mask of the text

    @property
    def has_part(self) -> bool:
        """Tell that rows among the keys are of interest as well."""
        return super().has_part or (not self.is_cross and self.prefix_length > 0)

    @property
    def mixed_size(self) -> int | None:
        """Return the batch size, as for documents that each name their adapter: these are never packed."""
        return None if self.plan is None else self.plan.batch_size

    @property
    def needs_keys(self) -> bool:
        """Ask for the keys of global tokens themselves."""
        return True

    def attend(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, scale: float, dropout: float, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """Note, and attend as ever."""
        if self.plan is not None and self.plan.phase is not Phase.PREFIX_ONLY:
            assert key is not None
            self.note(self.plan, query, key, scale=scale, mask=mask)
        return super().attend(query, key, value, scale=scale, dropout=dropout, mask=mask)

    def note(self, plan: Plan, query: Tensor, key: Tensor, *, scale: float, mask: Mask) -> None:
        """Add what the text's queries in (B, H, N, K) give to the prefix."""
        is_text = self.text_queries(query, mask if isinstance(mask, Window) else None)
        rows = plan.rows_here if not self.is_cross else 0
        columns = self.columns(plan, query)
        if not rows and not columns:
            return
        mass = mass_on_prefix(query, key, columns, rows=rows, scale=scale, mask=mask)
        seen = self.watch.seen.setdefault(id(self), Observed(self.layer, id(self.pass_state), self.is_cross))
        seen.mass = seen.mass + mass.transpose(1, 2)[is_text].double().sum(dim=0).cpu()
        seen.queries += int(is_text.sum())
        for part in columns:
            if isinstance(part, Part) and isinstance(part.branch, SelectiveBranch):
                seen.selected = seen.selected or Selected(part.branch.alpha)
                seen.selected.add(unmasked_scores(part, part.branch, query, scale).transpose(1, 2)[is_text])

    def columns(self, plan: Plan, query: Tensor) -> list[Columns]:
        """Return the score columns of the adapters at work.

        Raises:
            AdapterError: the prefix has a normalisation of its own.
        """
        rows = self.row_part(plan)
        found: list[Columns] = [] if rows is None else [rows]
        for part in self.parts(plan):
            if isinstance(part, Part):
                found.append(part)
            elif has_own_softmax(part, query):
                raise AdapterError(
                    "kernel-propagation attends to its prefix apart from the text: the two share no softmax, so there "
                    "is no mass to measure; analyse a run with alpha_scope: lambda, or of another method"
                )
        return found

    def text_queries(self, query: Tensor, window: Window | None) -> Tensor:
        """Return which of the (B, H, N, K) queries are tokens of the text, (B, N) bool.

        Longformer answers its global tokens in a second call: they do not count in the first.
        """
        if window is None and self.waiting is not None:
            (window, is_text), self.waiting = self.waiting, None
            return window.global_mask & is_text.gather(1, window.global_index)
        is_text = self.in_text(query)
        if window is None or not window.global_index.shape[1]:
            return is_text
        self.waiting = window, is_text
        return is_text & ~torch.zeros_like(is_text).scatter(1, window.global_index, window.global_mask)

    def in_text(self, query: Tensor) -> Tensor:
        """Tell the text's positions from those of rows and of padding, (B, N) bool."""
        text, first = self.watch.text, 0 if self.is_cross else self.prefix_length
        is_text = query.new_zeros(query.shape[0], query.shape[2], dtype=torch.bool)
        self.watch.stack = id(self.pass_state) if self.watch.stack is None else self.watch.stack
        if self.watch.stack != id(self.pass_state) or text is None:
            is_text[:, first:] = True
        else:  # Longformer and BigBird have padded the text to a multiple of their own
            is_text[:, first : first + text.shape[1]] = text
        return is_text


@contextmanager
def observing(model: nn.Module) -> Iterator[Watch]:
    """Watch the attentions of a model that runs on batches whose mask ``text`` is told; it computes what it did."""
    watch = Watch()
    ports = [port for module in model.modules() if isinstance(port := ADAPTER.get(module), AttentionAdapter)]
    for port in ports:
        port.__class__ = ObservedAdapter
        port.__dict__["watch"] = watch
    try:
        yield watch
    finally:
        for port in ports:
            for name in ("watch", "waiting"):
                port.__dict__.pop(name, None)
            port.__class__ = AttentionAdapter


def mass_on_prefix(
    query: Tensor, key: Tensor, columns: list[Columns], *, rows: int, scale: float, mask: Mask
) -> Tensor:
    """Return the share (B, H, N) of each query's softmax on the first ``rows`` keys and on the columns.

    ``sum_x p_x`` of the columns is what :func:`attend` returns beside its output. The probabilities of the rows are
    summed by values that are one at the rows and zero at the text.
    """
    on_rows = torch.zeros_like(key)
    on_rows[:, :, :rows, 0] = 1.0
    scores = [part.scores(query, scale) for part in columns]
    extra = ExtraColumns(torch.cat(scores, dim=-1) if scores else None)
    out, p_extra = attend(query, key, on_rows, scale=scale, mask=mask, columns=extra)
    return out[..., 0] if p_extra is None else out[..., 0] + p_extra.sum(dim=-1)


def unmasked_scores(part: Part, branch: PrefixBranch, query: Tensor, scale: float) -> Tensor:
    """Return the (B, H, N, P) scores of a selective prefix before its mask (eq. 4 of Zhang et al. 2024)."""
    return PrefixBranch.scores(branch, part.group.take(met_by(query, part.rotation)), scale)


def has_own_softmax(part: SeparateColumns, query: Tensor) -> bool:
    """Tell whether the rows are weighted by anything but the softmax that they would share with the text."""
    branch: SeparatePrefix = part.branch
    exponential = (branch.kernel, branch.text_kernel) == ("exponential", "exponential")
    return not exponential or branch.global_alpha is not None or branch.weight(query) is not None
