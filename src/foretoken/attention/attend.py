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
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretoken.attention.choose import check_engine, check_fits, choose_engine
from foretoken.attention.columns import divided, joined
from foretoken.attention.engines import block_sparse as blocked
from foretoken.attention.engines import dense
from foretoken.attention.engines import window as windowed
from foretoken.attention.engines.projected import Projected, attend_projected
from foretoken.attention.packed import Document, PackedBatch, documents_in_place
from foretoken.errors import ConfigError


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

    @cached_property
    def documents(self) -> tuple[Document, ...]:
        """The documents as stretches of the flattened (B M) batch; found once for all layers that share the window."""
        return documents_in_place(~self.key_mask, windowed.is_global(self))


@dataclass(frozen=True, eq=False)
class Packed:
    """Sliding-window attention with global keys over a run of documents without padding (B = 1, N = M = T).

    Attributes:
        one_sided: how many neighbours are seen on either side.
        stream: where the documents are in the run.
        rows: keys and values (B, H, P, K) of the documents' rows in front, global ones; None for none.
    """

    one_sided: int
    stream: PackedBatch
    rows: tuple[Tensor, Tensor] | None = None


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


Engine = Callable[..., tuple[Tensor, Tensor | None]]
DENSE: dict[str, Engine] = {
    "sdpa": dense.attend_sdpa,
    "reference": dense.attend_reference,
}
WINDOWED: dict[str, Engine] = {
    "block": windowed.attend_block,
    "gather-sdpa": windowed.attend_gather,
    "flex": windowed.attend_flex,
    "reference": windowed.attend_reference,
}
PACKED: dict[str, Engine] = {"block": windowed.attend_packed_block, "flex": windowed.attend_packed_flex}
BLOCKED: dict[str, Engine] = {
    "gather-sdpa": blocked.attend_gather,
    "reference": blocked.attend_reference,
}
KEEPING = (  # engines that know what `kept` is; the others are asked twice
    dense.attend_reference,
    windowed.attend_block,
    windowed.attend_flex,
    windowed.attend_reference,
    windowed.attend_packed_block,
    windowed.attend_packed_flex,
    blocked.attend_reference,
    attend_projected,
)
FRONTED = (  # engines that know what `front` is; for the others, score columns
    dense.attend_sdpa,
    windowed.attend_block,
    windowed.attend_packed_block,
    windowed.attend_packed_flex,
)


def engines(*, window: bool = False, blocks: bool = False, packed: bool = False) -> tuple[str, ...]:
    """Return the names of the engines.

    >>> engines()
    ('sdpa', 'reference')
    >>> engines(window=True)
    ('block', 'gather-sdpa', 'flex', 'reference')
    >>> engines(packed=True)
    ('block', 'flex')
    >>> engines(blocks=True)
    ('gather-sdpa', 'reference')
    """
    return tuple(WINDOWED if window else BLOCKED if blocks else PACKED if packed else DENSE)


def attend(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    *,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    window: Window | None = None,
    packed: Packed | None = None,
    blocks: Blocks | None = None,
    projected: Projected | None = None,
    front: tuple[Tensor, Tensor] | None = None,
    extra_scores: Tensor | None = None,
    kept: int = 0,
    kernel: str = "exponential",
    dropout: float = 0.0,
    engine: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Softmax over [the backbone's own keys | extra score columns], summed over the own keys only.

    Args:
        query: (B, H, N, K).
        key: (B, H_kv, M, K); H_kv divides H (grouped-query attention). None with ``projected``.
        value: (B, H_kv, M, K).
        scale: what the scores are multiplied by, usually ``K ** -0.5``.
        mask: broadcastable to (B, H, N, M); bool (True: may be seen) or added to the scores. Dense attention only.
        is_causal: query i sees keys 0..i. Dense attention without a mask only.
        window: sliding-window attention with global keys instead of dense attention.
        packed: the same over a run of documents without padding.
        blocks: block-sparse attention instead of dense attention; M = N.
        projected: dense attention to keys and values that are not computed.
        front: keys and values (B, H_kv, F, K) of the method's that every query sees as well.
        extra_scores: (B, H, N, X), already scaled; ``-inf`` removes a column.
        kept: how many of the last columns weigh only: they get their probabilities, and leave out and the other
            columns as they are without them.
        kernel: similarity of a query and a key, one of :data:`foretoken.attention.kernels.KERNELS`; only the
            exponential one shares its normalisation with extra columns.
        dropout: probability of dropping an attention weight, extra columns included, kept ones not.
        engine: a name of :func:`engines`; default: see :mod:`foretoken.attention.choose`.

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
    kinds: dict[str, Any] = {"window": window, "packed": packed, "blocks": blocks, "projected": projected}
    given = {name: kind for name, kind in kinds.items() if kind is not None}
    if len(given) > 1 or (given and (mask is not None or is_causal)):
        raise ConfigError("attention takes one kind of mask: `mask`/`is_causal`, or `window`, `packed`, `blocks` alone")
    if kernel != "exponential" and not (extra_scores is None and front is None):
        raise ConfigError(f"a {kernel} kernel shares no softmax with score columns; leave out one of the two methods")
    if projected is None:
        table = {"window": WINDOWED, "packed": PACKED, "blocks": BLOCKED}.get(next(iter(given), ""), DENSE)
        if engine is not None:
            check_engine(engine, table)
            check_fits(engine, query.device, dropout=dropout, kernel=kernel)
        run = table[engine or choose_engine(table, query.device, dropout=dropout, kernel=kernel)]
        options = {**(given or {"mask": mask, "is_causal": is_causal}), "kernel": kernel}
    else:
        run, options = attend_projected, {"source": projected}
    options |= {"scale": scale, "dropout": dropout}
    return composed(run, (query, key, value), front=front, extra_scores=extra_scores, kept=kept, options=options)


def own_weights(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """Return the (B, H, N, M) weights of the own keys, extra columns allowed for: the attention of one-hot values."""
    one_hot = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
    return attend(query, key, one_hot, engine="reference", **options)[0]


def composed(
    run: Engine,
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    *,
    front: tuple[Tensor, Tensor] | None,
    extra_scores: Tensor | None,
    kept: int,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Run an engine on what it knows, and put the rest together from that."""
    if front is not None and run in FRONTED:
        options, front = {**options, "front": front}, None
    if front is not None:
        return with_front(run, inputs, front=front, extra_scores=extra_scores, kept=kept, options=options)
    if run in KEEPING:
        return run(*inputs, extra_scores=extra_scores, kept=kept, **options)
    if not kept:
        return run(*inputs, extra_scores=extra_scores, **options)
    # out by itself, not out / (1 - lambda): where lambda rounds to 1 nothing of it would be left
    out, p_shared = run(*inputs, extra_scores=divided(extra_scores, kept)[0], **options)
    _, everything = run(*inputs, extra_scores=extra_scores, **{**options, "dropout": 0.0})
    assert everything is not None
    return out, joined(p_shared, everything[..., -kept:])


def with_front(
    run: Engine,
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    *,
    front: tuple[Tensor, Tensor],
    extra_scores: Tensor | None,
    kept: int,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """Let the keys in front be score columns, and add what their probabilities take of their values."""
    query = inputs[0]
    key, value = (dense.repeat_heads(x.to(query.dtype), query.shape[1]) for x in front)
    scores = query @ key.transpose(-1, -2) * options["scale"]
    count = scores.shape[-1]
    columns = scores if extra_scores is None else torch.cat([scores, extra_scores], dim=-1)
    out, p = composed(run, inputs, front=None, extra_scores=columns, kept=kept, options=options)
    assert p is not None
    out = out + p[..., :count].to(out.dtype) @ value
    return out, None if extra_scores is None else p[..., count:]
