"""The one attention contract, and the one place that chooses an engine.

Every attention-site method of the papers is an edit of one identity. The text's keys have scores ``s_j``; the method
adds extra score columns ``e_x``. One softmax goes over both, and :func:`attend` returns

    out_i = sum_j p_ij v_j          summed over the text's own keys only
    p_extra_ix                      the probabilities of the extra columns

so that ``out = (1 - sum_x p_extra_x) f`` with ``f`` the attention without the extra columns. Prefix-tuning is
``out + p_extra @ P_v`` (He et al. 2022, eq. 7).

Shapes: B batch, H heads, N queries, M keys, K head width, X extra columns, G global keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from foretoken.attention import blocked, dense, windowed
from foretoken.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Window:
    """Sliding-window attention with global keys (Longformer).

    Query i sees key j when ``|i - j| <= one_sided`` or when j is global; masked keys are seen by nobody.

    Attributes:
        one_sided: how many neighbours are seen on either side.
        key_mask: (B, M) bool, True for a real token, False for padding.
        global_index: (B, G) positions of the global keys, padded with any valid position.
        global_mask: (B, G) bool, True where ``global_index`` is a real global key.
    """

    one_sided: int
    key_mask: Tensor
    global_index: Tensor
    global_mask: Tensor


@dataclass(frozen=True)
class Blocks:
    """Block-sparse attention (BigBird).

    The keys are rows in front of the text, and the text in blocks of equal size, three at least. The rows, the text's
    first block and its last one see every key and are seen by every query. A query of another block sees, beside
    those, its own block, the two next to it, and some blocks drawn at random. A drawn block that it sees anyhow counts
    once more, as in transformers. Masked keys are seen by nobody.

    Attributes:
        size: how many tokens a block has.
        key_mask: (B, M) bool, True for a real row or token, False for padding.
        random: (H, blocks - 2, R) the blocks drawn, for each head and each block but the first and the last.
        front: how many rows stand in front of the text.
    """

    size: int
    key_mask: Tensor
    random: Tensor
    front: int = 0


DENSE: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {
    "sdpa": dense.attend_sdpa,
    "reference": dense.attend_reference,
}
WINDOWED: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {
    "gather-sdpa": windowed.attend_gather,
    "reference": windowed.attend_reference,
}
BLOCKED: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {
    "gather-sdpa": blocked.attend_gather,
    "reference": blocked.attend_reference,
}


def engines(*, window: bool = False, blocks: bool = False) -> tuple[str, ...]:
    """Return the names of the engines, the default one first.

    >>> engines()
    ('sdpa', 'reference')
    >>> engines(window=True)
    ('gather-sdpa', 'reference')
    >>> engines(blocks=True)
    ('gather-sdpa', 'reference')
    """
    return tuple(WINDOWED if window else BLOCKED if blocks else DENSE)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    window: Window | None = None,
    blocks: Blocks | None = None,
    extra_scores: Tensor | None = None,
    kernel: str = "exponential",
    dropout: float = 0.0,
    engine: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Softmax over [the backbone's own keys | extra score columns], summed over the own keys only.

    Args:
        query: (B, H, N, K).
        key: (B, H_kv, M, K); H_kv divides H (grouped-query attention).
        value: (B, H_kv, M, K).
        scale: what the scores are multiplied by, usually ``K ** -0.5``.
        mask: broadcastable to (B, H, N, M); bool (True: may be seen) or added to the scores. Dense attention only.
        is_causal: query i sees keys 0..i. Dense attention without a mask only.
        window: sliding-window attention with global keys instead of dense attention.
        blocks: block-sparse attention instead of dense attention; M = N.
        extra_scores: (B, H, N, X), already scaled; ``-inf`` removes a column.
        kernel: similarity of a query and a key, one of :data:`foretoken.attention.kernels.KERNELS`; only the
            exponential one shares its normalisation with extra columns.
        dropout: probability of dropping an attention weight, extra columns included.
        engine: a name of :func:`engines`; default: the fastest that fits.

    Returns:
        out (B, H, N, K), and p_extra (B, H, N, X) or None without extra columns.

    Raises:
        ConfigError: unknown engine, another kernel with extra columns, or masks of more than one kind.

    >>> import torch
    >>> q = k = v = torch.eye(2)[None, None]
    >>> out, p_extra = attend(q, k, v, scale=1.0, extra_scores=torch.zeros(1, 1, 2, 1))
    >>> [round(x, 4) for x in (out.sum(-1) + p_extra.sum(-1)).flatten().tolist()]
    [1.0, 1.0]
    """
    table = WINDOWED if window is not None else BLOCKED if blocks is not None else DENSE
    name = engine or next(iter(table))
    if name not in table:
        hint = did_you_mean(name, table)
        raise ConfigError(f"attention engine {name!r} is not known{hint}; use one of {', '.join(table)}")
    if kernel != "exponential" and extra_scores is not None:
        raise ConfigError(f"a {kernel} kernel shares no softmax with score columns; leave out one of the two methods")
    common = {"scale": scale, "extra_scores": extra_scores, "kernel": kernel, "dropout": dropout}
    if window is None and blocks is None:
        return table[name](query, key, value, mask=mask, is_causal=is_causal, **common)
    if mask is not None or is_causal or None not in (window, blocks):
        raise ConfigError(
            "sparse attention takes its masks from `window` or `blocks` alone; leave out `mask` and `is_causal`"
        )
    if window is not None:
        return table[name](query, key, value, window=window, **common)
    return table[name](query, key, value, blocks=blocks, **common)
