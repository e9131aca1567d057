"""Sliding window + global keys on a CPU: block after block, in buffers that are used again. Engine ``block``.

A block of queries sees [extra columns | keys in front | global keys | the block's band], gathered into one buffer: one
batched matrix product, one softmax, one product with the values, all in the cache. The backward pass computes the
probabilities again, so that nothing of size N x window is kept.

Shapes: T tokens of all documents, H heads, K head width, X extra columns, F keys in front of a document, B documents,
C columns of one block's scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from foretoken.attention.columns import divided, joined, kept_probabilities
from foretoken.attention.engines.cpu_band_walk import Band, Block, Walk
from foretoken.attention.packed import Document


class Banded(torch.autograd.Function):
    """Attention of (T, H, K) queries within their documents' bands.

    Returns (T, H, K), the extra columns' probabilities (H, T, X), and the log-sum-exp (H, T) in float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        front_key: Tensor | None,
        front_value: Tensor | None,
        columns: Tensor | None,
        band: Band,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`attend_documents`."""
        ctx.save_for_backward(query, key, value, front_key, front_value, columns)
        ctx.band, ctx.scale = band, scale
        tokens, heads, _ = query.shape
        out = torch.zeros_like(query)
        wide = torch.promote_types(query.dtype, torch.float32)
        # not -inf, where no document is: against a column of -inf there would be no probability
        lse = query.new_zeros((heads, tokens) if band.with_lse else (0,), dtype=wide)
        with torch.autocast(query.device.type, enabled=False):
            walk = Walk(band, key, value, pair(front_key, front_value), columns, scale)
            extra = query.new_zeros(heads, tokens, walk.num_extra)
            for block in walk:
                here = slice(block.start, block.stop)
                scores = walk.scores(walk.scaled(query, block), block)
                highest = scores.amax(dim=-1) if band.with_lse else None
                torch.softmax(scores, dim=-1, out=scores)
                if highest is not None:
                    lse[:, here] = highest.to(wide) - scores.amax(dim=-1).to(wide).log()
                extra[:, here] = scores[:, :, : walk.num_extra]
                out[here] = torch.bmm(scores, walk.values[:, : block.columns]).transpose(0, 1)
        return out, extra, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_extra: Tensor, grad_lse: Tensor) -> tuple[Any, ...]:
        """Compute each block's probabilities again, and from them the gradients."""
        inputs = ctx.saved_tensors  # once: a checkpoint that recomputes them gives each out once
        query, key, value, front_key, front_value, columns = inputs
        band, wants = ctx.band, ctx.needs_input_grad
        with torch.autocast(query.device.type, enabled=False):
            walk = Walk(band, key, value, pair(front_key, front_value), columns, ctx.scale)
            sums = Sums(inputs, wants)
            other = torch.empty_like(walk.room)
            for block in walk:
                here = slice(block.start, block.stop)
                queries = walk.scaled(query, block)
                weights = walk.scores(queries, block)
                torch.softmax(weights, dim=-1, out=weights)
                given = grad_out[here].transpose(0, 1).contiguous()
                until = block.columns if wants[1] or wants[2] else walk.num_extra + walk.num_front
                if wants[2] or wants[4]:
                    sums.to_values(torch.bmm(weights[:, :, :until].transpose(1, 2), given), block, walk)
                grads = other[: weights.numel()].view_as(weights)
                torch.bmm(given, walk.values[:, : block.columns].transpose(1, 2), out=grads)
                if walk.num_extra:
                    grads[:, :, : walk.num_extra] += grad_extra[:, here]
                grads = softmax_backward(grads, weights)
                if band.with_lse:
                    grads.addcmul_(weights, grad_lse[:, here, None].to(grads.dtype))
                if sums.columns is not None:
                    sums.columns[:, here] = grads[:, :, : walk.num_extra]
                if sums.query is not None:
                    product = torch.bmm(grads, walk.keys[:, : block.columns])
                    sums.query[here] = product.mul_(ctx.scale).transpose(0, 1)
                if wants[1] or wants[3]:
                    sums.to_keys(torch.bmm(grads[:, :, :until].transpose(1, 2), queries), block, walk)
        return sums.query, sums.key, sums.value, sums.front_key, sums.front_value, sums.columns, None, None


def pair(key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return both or None."""
    return None if key is None or value is None else (key, value)


class Sums:
    """The gradients of what :class:`Banded` is given, summed up block by block; None where none is needed."""

    def __init__(self, inputs: Sequence[Tensor | None], wants: Sequence[bool]) -> None:
        made = [torch.zeros_like(x) if x is not None and want else None for x, want in zip(inputs, wants, strict=False)]
        self.query, self.key, self.value, self.front_key, self.front_value, self.columns = made

    def to_keys(self, grads: Tensor, block: Block, walk: Walk) -> None:
        """Add the gradients (H, C, K) of one block's keys."""
        self.spread(grads, self.key, self.front_key, block, walk)

    def to_values(self, grads: Tensor, block: Block, walk: Walk) -> None:
        """Add the gradients (H, C, K) of one block's values."""
        self.spread(grads, self.value, self.front_value, block, walk)

    @staticmethod
    def spread(grads: Tensor, own: Tensor | None, front: Tensor | None, block: Block, walk: Walk) -> None:
        """Add one buffer's gradients to where its rows came from."""
        begin, end = walk.num_extra, walk.num_extra + walk.num_front
        if front is not None:
            front[block.number] += grads[:, begin:end]
        if own is None:
            return
        if block.ahead > end:
            own.index_add_(0, block.document.global_index, grads[:, end : block.ahead].transpose(0, 1))
        own[block.first : block.last] += grads[:, block.ahead : block.columns].transpose(0, 1)


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Return the gradient of the scores: (.., C) each. PyTorch's own kernel is private: it may be missing one day."""
    kernel = getattr(torch, "_softmax_backward_data", None)
    if kernel is None:
        return grad.sub_((grad * weights).sum(dim=-1, keepdim=True)).mul_(weights)
    return kernel(grad, weights, -1, grad.dtype)


def attend_documents(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    documents: Sequence[Document],
    one_sided: int,
    front: tuple[Tensor, Tensor] | None = None,
    extra_scores: Tensor | None = None,
    kept: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Window + global attention of documents that lie one after another in (T, H, K) tensors.

    Args:
        query: (T, H, K).
        key: (T, H, K).
        value: (T, H, K).
        scale: what the scores are multiplied by.
        documents: where they are; tokens of none get zero, as masked ones do.
        one_sided: how many neighbours are seen on either side.
        front: keys and values (B, H, F, K) that all of a document's queries see.
        extra_scores: (H, T, X), already scaled.
        kept: how many of the last columns weigh only.

    Returns:
        out (T, H, K), and the columns' probabilities (H, T, X) or None.
    """
    shared, apart = divided(extra_scores, kept)
    band = Band(documents, one_sided, with_lse=apart is not None)
    front_key, front_value = (None, None) if front is None else (x.to(query.dtype) for x in front)
    columns = None if shared is None else shared.to(query.dtype)
    out, p_shared, lse = Banded.apply(query, key, value, front_key, front_value, columns, band, scale)
    p_kept = None if apart is None else kept_probabilities(lse, apart)
    if any(document.masked is not None for document in documents):
        out = out * real_tokens(documents, query)[:, None, None]
    return out, joined(None if shared is None else p_shared, p_kept)


def real_tokens(documents: Sequence[Document], like: Tensor) -> Tensor:
    """Return (T,): 1 at the documents' real tokens, 0 elsewhere."""
    marks = like.new_zeros(like.shape[0])
    for document in documents:
        inside = marks[document.start : document.stop]
        inside.fill_(1.0) if document.masked is None else inside.copy_(~document.masked)
    return marks
