"""Extra score columns in a softmax, and columns that weigh it without taking part in it.

Of X extra columns the last ``kept`` leave the attention as it is without them: ``out`` and the probabilities of the
other columns are those of the softmax over [own keys | other columns]; the kept ones get the probability that they
would have in the softmax over everything.
"""

from __future__ import annotations

import torch
from torch import Tensor


def divided(extra_scores: Tensor | None, kept: int) -> tuple[Tensor | None, Tensor | None]:
    """(..., X) -> the columns that share the softmax and those that are kept out of it; None for none."""
    if extra_scores is None or not kept:
        return extra_scores, None
    shared = extra_scores[..., :-kept]
    return (shared if shared.shape[-1] else None), extra_scores[..., -kept:]


def joined(shared: Tensor | None, kept: Tensor | None) -> Tensor | None:
    """Put the probabilities of both kinds side by side again."""
    if shared is None or kept is None:
        return kept if shared is None else shared
    return torch.cat([shared, kept], dim=-1)


def kept_probabilities(lse: Tensor, kept_scores: Tensor) -> Tensor:
    """(...) log-sum-exp of all that shares the softmax, (..., X) -> the kept columns' probabilities (..., X)."""
    everything = torch.cat([lse.unsqueeze(-1), kept_scores.to(lse.dtype)], dim=-1)
    return torch.softmax(everything, dim=-1)[..., 1:].to(kept_scores.dtype)


def softmax_with_columns(scores: Tensor, extra_scores: Tensor | None, kept: int) -> tuple[Tensor, Tensor | None]:
    """(..., M) own scores -> the own keys' weights (..., M), and the columns' probabilities (..., X)."""
    shared, apart = divided(extra_scores, kept)
    all_scores = scores if shared is None else torch.cat([scores, shared], dim=-1)
    weights = torch.softmax(all_scores, dim=-1)
    own, p_shared = weights.split([scores.shape[-1], weights.shape[-1] - scores.shape[-1]], dim=-1)
    p_kept = None if apart is None else kept_probabilities(all_scores.logsumexp(dim=-1), apart)
    return own, joined(None if shared is None else p_shared, p_kept)


def merged(f: Tensor, lse: Tensor, extra_scores: Tensor | None, kept: int) -> tuple[Tensor, Tensor | None]:
    """Attention (..., K) over the own keys and their log-sum-exp (...) -> what the contract asks for."""
    shared, apart = divided(extra_scores, kept)
    p_shared = None
    if shared is not None:
        p_shared = kept_probabilities(lse, shared)
        total = torch.logaddexp(lse, shared.to(lse.dtype).logsumexp(dim=-1))
        f = f * (lse - total).exp().unsqueeze(-1).to(f.dtype)
        lse = total
    return f, joined(p_shared, None if apart is None else kept_probabilities(lse, apart))
