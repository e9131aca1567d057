"""The one attention: every mask, every engine, and the methods' extra columns.

Every attention-site method of the papers is an edit of one identity. The text's keys have scores ``s_j``; the method
adds extra score columns ``e_x``. One softmax goes over both, and :func:`attend` returns

    out_i = sum_j p_ij v_j          summed over the text's own keys only
    p_extra_ix                      the probabilities of the extra columns

so that ``out = (1 - sum_x p_extra_x) f`` with ``f`` the attention without the extra columns. Prefix-tuning is
``out + p_extra @ P_v`` (He et al. 2022, eq. 7).

Shapes: B batch, H heads, N queries, M keys, K head width, X extra columns, P prefix keys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from foretoken.attention.call import EVERYTHING, AttentionCall
from foretoken.attention.choose import choose_engine, named_engine
from foretoken.attention.columns import NO_COLUMNS, ExtraColumns, joined
from foretoken.attention.engines.dense import repeat_heads
from foretoken.attention.engines.table import BY_MASK
from foretoken.attention.kernels import SOFTMAX, Weighting
from foretoken.attention.masks import Mask
from foretoken.errors import ConfigError


def attend(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    columns: ExtraColumns = NO_COLUMNS,
    weighting: Weighting = SOFTMAX,
    engine: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Softmax over [the backbone's own keys | extra score columns], summed over the own keys only.

    Args:
        query: (B, H, N, K).
        key: (B, H_kv, M, K); H_kv divides H (grouped-query attention). None where the mask computes the keys itself.
        value: (B, H_kv, M, K); None as for ``key``.
        scale: the factor on the scores, usually ``K ** -0.5``.
        mask: which keys a query sees; its kind decides which engines there are.
        columns: what a method adds: score columns, and keys and values that every query sees.
        weighting: how scores become weights: the kernel, and dropout.
        engine: a name of :func:`engines`; default: see :mod:`foretoken.attention.choose`.

    Returns:
        out (B, H, N, K), and p_extra (B, H, N, X) or None without extra columns.

    Raises:
        ConfigError: an engine that is unknown or cannot do this call, or another kernel with extra columns.

    >>> import torch
    >>> q = k = v = torch.eye(2)[None, None]
    >>> out, p_extra = attend(q, k, v, scale=1.0, columns=ExtraColumns(torch.zeros(1, 1, 2, 1)))
    >>> [round(x, 4) for x in (out.sum(-1) + p_extra.sum(-1)).flatten().tolist()]
    [1.0, 1.0]
    """
    call = AttentionCall(query, key, value, scale, mask, weighting)  # type: ignore[arg-type] # None: see its docstring
    return attend_call(call, columns, engine=engine)


def attend_call(
    call: AttentionCall, columns: ExtraColumns = NO_COLUMNS, *, engine: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Compute :func:`attend` for a call that is a value."""
    weighting = call.weighting
    if weighting.kernel != "exponential" and not (columns.scores is None and columns.prefix_kv is None):
        kernel = weighting.kernel
        raise ConfigError(f"a {kernel} kernel shares no softmax with score columns; leave out one of the two methods")
    candidates, device = BY_MASK[type(call.mask)], call.query.device
    if engine is None:
        chosen = choose_engine(candidates, device, weighting)
    else:
        chosen = named_engine(engine, candidates, device, weighting)
    # reference.prefix_propagation: the softmax over all rows, [prefix + states; text]: the prefix is among the keys
    takes_prefix = chosen.prefix and (columns.prefix_mask is None or chosen.prefix_mask)
    if columns.prefix_kv is not None and not takes_prefix:
        return with_prefix_as_columns(chosen.name, call, columns.prefix_kv, columns)
    if not columns.num_outside or chosen.outside_softmax:
        return chosen.run(call, columns)
    # `out` comes from a run of its own, not as out / (1 - lambda): where lambda rounds to 1 nothing would be left
    assert columns.scores is not None
    inside = columns.scores[..., : -columns.num_outside]
    shared = replace(columns, scores=inside if inside.shape[-1] else None, num_outside=0)
    out, p_inside = chosen.run(call, shared)
    without_dropout = replace(call, weighting=Weighting(call.weighting.kernel))
    _, everything = chosen.run(without_dropout, replace(columns, num_outside=0))
    assert everything is not None
    return out, joined(p_inside, everything[..., -columns.num_outside :])


def own_weights(call: AttentionCall, columns: ExtraColumns = NO_COLUMNS) -> Tensor:
    """Return the (B, H, N, M) weights of the own keys beside the extra columns: the attention to one-hot values."""
    key = call.key
    one_hot = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
    return attend_call(replace(call, value=one_hot, weighting=SOFTMAX), columns, engine="reference")[0]


def with_prefix_as_columns(
    engine: str, call: AttentionCall, prefix_kv: tuple[Tensor, Tensor], columns: ExtraColumns
) -> tuple[Tensor, Tensor | None]:
    """Use the prefix's keys as score columns, and add their values weighted by the probabilities."""
    query = call.query
    key, value = (repeat_heads(x.to(query.dtype), query.shape[1]) for x in prefix_kv)
    scores = query @ key.transpose(-1, -2) * call.scale
    if columns.prefix_mask is not None:
        scores = scores.masked_fill(~columns.prefix_mask, float("-inf"))
    count = scores.shape[-1]
    both = scores if columns.scores is None else torch.cat([scores, columns.scores], dim=-1)
    out, p = attend_call(call, ExtraColumns(both, columns.num_outside), engine=engine)
    assert p is not None
    out = out + p[..., :count].to(out.dtype) @ value
    return out, None if columns.scores is None else p[..., count:]
