"""LoRA of the query and value projections (Hu et al. 2021), also where one map yields queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foretoken.attention import LinearMap
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.bottleneck_adapter import linear
from foretoken.methods.dimensions import AttentionShape, Dimensions, Place
from foretoken.methods.require import require_fraction, require_int, require_positive
from foretoken.methods.sites import OutputEdit, Sites
from foretoken.options import option


@dataclass
class QueryValueLoraConfig(ForetokenConfig):
    """LoRA of every query and value projection, each with matrices of its own: ``W x + (alpha / r) B A x``.

    Hu et al. 2021 adapt W_q and W_v. In GPT-2 and ModernBERT one map yields queries, keys and values; LoRA of peft
    adapts the whole map, with one A for the three, while this method does not adapt the keys. B starts at zero:
    training starts at the frozen model. 4 L r D parameters where heads share no keys.

    Args:
        r: rank of each update.
        lora_alpha: the updates are scaled by ``lora_alpha / r`` (default: ``r``, the unscaled sum).
        lora_dropout: probability of dropping an element of an update's input in training.

    Raises:
        ConfigError: a value that cannot work, e.g. ``r`` below 1.

    >>> QueryValueLoraConfig(r=54).peft_type
    'FORETOKEN_QUERY_VALUE_LORA'
    """

    r: int = option("rank of each update", 8)
    lora_alpha: float | None = option("the updates are scaled by lora_alpha / r (default: r)", None)
    lora_dropout: float = option("dropout on the input of the updates in training", 0.0)

    method_type: ClassVar[str] = "FORETOKEN_QUERY_VALUE_LORA"
    usual_rate: ClassVar[float | None] = 3e-3

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        require_int("r", self.r, minimum=1)
        if self.lora_alpha is not None:
            require_positive("lora_alpha", self.lora_alpha)
        require_fraction("lora_dropout", self.lora_dropout)

    def build(self, dimensions: Dimensions) -> Sites:
        """Return two updates per attention, in one edit where one map yields both."""
        outputs: dict[str | Place, OutputEdit] = {}
        for index, shape in enumerate(dimensions.attentions):
            if shape.is_fused:
                query, value = self._updates(shape, dimensions.hidden_size)
                outputs[Place("fused", index)] = QueryValueUpdate(query, value)
                continue
            for part in range(shape.query_maps):
                query, value = self._updates(shape, dimensions.hidden_size)
                outputs |= {Place("query", index, part): query, Place("value", index, part): value}
        return Sites(outputs=outputs)

    def _updates(self, shape: AttentionShape, width: int) -> tuple[LowRankUpdate, LowRankUpdate]:
        scale = 1.0 if self.lora_alpha is None else self.lora_alpha / self.r
        query, value = (
            LowRankUpdate(width, heads * shape.head_dim, rank=self.r, scale=scale, dropout=self.lora_dropout)
            for heads in (shape.num_heads, shape.num_key_value_heads)
        )
        return query, value


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
