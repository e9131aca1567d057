"""Attention of few queries to keys and values that are linear maps of hidden states: without computing the maps.

Longformer's global tokens have key and value projections of their own, over all N tokens. For g queries it is cheaper
to move the maps to the queries' side: ``q (W_k x + b_k) = (q W_k) x + q b_k`` and
``sum_j p_j (W_v x_j + b_v) = W_v (sum_j p_j x_j) + b_v sum_j p_j``. The term ``q b_k`` is the same for all of a query's
keys; it cancels in their softmax, but not against extra columns.

Shapes: B batch, H heads, G queries, M keys, K head width, X extra columns, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses

from foretoken.attention.columns import ExtraColumns, softmax_with_columns
from foretoken.attention.kernels import Weighting
from foretoken.attention.masks import Mask
from foretoken.errors import AdapterError

DIRECT_FROM = 0.7  # share of G H in D from which projecting all tokens is cheaper


@dataclass(frozen=True, eq=False)
class Projected(Mask):
    """Dense attention to keys ``W_k x + b_k`` and values ``W_v x + b_v`` that are not computed: it stands for them.

    Attributes:
        hidden: (B, M_i, D) each; their tokens one after another are the M keys.
        key: W_k (H K, D) and b_k (H K,) or None.
        value: W_v (H K, D) and b_v (H K,) or None.
        mask: (B, M) bool, True for a key that is seen; None: all.
    """

    hidden: tuple[Tensor, ...]
    key: tuple[Tensor, Tensor | None]
    value: tuple[Tensor, Tensor | None]
    mask: Tensor | None = None

    def take(self, index: Tensor) -> Projected:
        """Return the keys and values of some documents."""
        mask = None if self.mask is None else self.mask.index_select(0, index)
        return Projected(tuple(x.index_select(0, index) for x in self.hidden), self.key, self.value, mask)

    def num_documents(self, query: Tensor) -> int:
        """Return B."""
        return query.shape[0]

    def without_prefix(self, length: int, key: Tensor, value: Tensor) -> tuple[Projected, Tensor, Tensor]:
        """Raise AdapterError: what divides prefix and text asks for the keys themselves."""
        raise AdapterError("keys that are not computed cannot be divided into text and prefix; compute them")


def pays(queries: int, heads: int, width: int) -> bool:
    """Tell whether that many queries are few enough: measured, they are up to about 45 of 12 heads at width 768."""
    return queries * heads < DIRECT_FROM * width


def attend_projected(
    query: Tensor,
    key: None,
    value: None,
    source: Projected,
    columns: ExtraColumns,
    *,
    scale: float,
    weighting: Weighting,
) -> tuple[Tensor, Tensor | None]:
    """(B, H, G, K) -> out (B, H, G, K) and p_extra (B, H, G, X); there are no keys and values to hand in."""
    heads, queries, width = query.shape[1:]
    query = query * scale
    (key_weight, key_bias), (value_weight, value_bias) = source.key, source.value
    aimed = torch.einsum("bhgk,hkd->bhgd", query, key_weight.unflatten(0, (heads, width)).to(query.dtype)).flatten(1, 2)
    scores = torch.cat([aimed @ part.transpose(1, 2) for part in source.hidden], dim=-1)
    scores = scores.unflatten(1, (heads, queries))
    if key_bias is not None and (columns.scores is not None or key_bias.requires_grad):
        scores = scores + torch.einsum("bhgk,hk->bhg", query, key_bias.unflatten(0, (heads, width))).unsqueeze(-1)
    if source.mask is not None:
        scores = scores.masked_fill(~source.mask[:, None, None], float("-inf"))
    weights, p_extra = softmax_with_columns(scores, columns)
    if source.mask is not None:  # a document without a token has no softmax
        weights = weights.masked_fill(~source.mask[:, None, None], 0.0)
    weights = F.dropout(weights, weighting.dropout, training=weighting.dropout > 0)
    parts = weights.flatten(1, 2).split([part.shape[1] for part in source.hidden], dim=-1)
    means = sum_of([part @ hidden for part, hidden in zip(parts, source.hidden, strict=True)])
    means = means.unflatten(1, (heads, queries))
    out = torch.einsum("bhgd,hkd->bhgk", means, value_weight.unflatten(0, (heads, width)).to(query.dtype))
    if value_bias is not None:
        out = out + weights.sum(dim=-1, keepdim=True) * value_bias.unflatten(0, (heads, 1, width)).to(out.dtype)
    return out, p_extra


def sum_of(parts: list[Tensor]) -> Tensor:
    """Return the sum of one or more tensors."""
    total, *rest = parts
    for part in rest:
        total = total + part
    return total
