"""A low-rank update of a projection, and of the queries and values of a projection that also yields keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foretoken.attention import LinearMap
from foretoken.methods.bottleneck_adapter import linear
from foretoken.methods.sites import OutputEdit


class LowRankUpdate(OutputEdit):
    """``W x + (alpha / r) B A x`` (Hu et al. 2021): A (r, D_in) random, B (D_out, r) zero, no bias."""

    def __init__(self, given: int, output: int, *, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(given, rank, bias=False)
        self.up = nn.Linear(rank, output, bias=False)
        self.scale = scale
        nn.init.zeros_(self.up.weight)

    def forward(self, output: Tensor, module_input: Tensor) -> Tensor:
        """(B, N, D_out) and (B, N, D_in) -> (B, N, D_out)."""
        # reference.lora: y + s B A x
        update = linear(self.up, linear(self.down, self.dropout(module_input.to(output.dtype))))
        return output + self.scale * update.to(output.dtype)

    def folded(self, module: LinearMap) -> LinearMap | None:
        """Return the map with the update; None with dropout."""
        if self.dropout.p and self.dropout.training:
            return None
        return module.updated(self.down.weight, self.up.weight * self.scale)


class QueryValueUpdate(OutputEdit):
    """An update of the queries and one of the values in the output of a map that yields ``[q | k | v]``."""

    def __init__(self, query: LowRankUpdate, value: LowRankUpdate) -> None:
        super().__init__()
        self.query = query
        self.value = value

    def forward(self, output: Tensor, module_input: Tensor) -> Tensor:
        """(B, N, D_q + D_k + D_v) and (B, N, D) -> (B, N, D_q + D_k + D_v)."""
        # reference.query_value_lora: the parts of one output; k stays
        first, last = self.query.up.out_features, self.value.up.out_features
        key = output[..., first:-last]
        return torch.cat(
            [self.query(output[..., :first], module_input), key, self.value(output[..., -last:], module_input)], dim=-1
        )
