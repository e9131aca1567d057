"""Prefix-tuning / P-tuning v2 (Li & Liang 2021; Liu et al. 2022): trained keys and values in every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from foretoken.attention import repeat_heads
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefixes.prefix import Prefix, PrefixConfig, ProjectedPrefix, make_prefixes, write_prefix
from foretoken.methods.sites import FrozenStates, ScoreColumns, Sites


@dataclass
class PrefixTuningConfig(PrefixConfig):
    """Prefix-tuning: per attention, P trained keys and values that every query sees.

    With ``e_x = q P_k,x / sqrt(K)`` beside the text's own scores in one softmax, the output is
    ``sum_j p_j v_j + sum_x p_x P_v,x`` (He et al. 2022, eq. 7). Visible to every query, the sliding-window and the
    global ones included; never rotated; positions do not shift; no key-value cache is involved. 2 L P D_kv parameters;
    an encoder-decoder's decoder has as many again for its attention to the encoder.

    Raises:
        ConfigError: a value that cannot work, e.g. ``num_virtual_tokens`` below 1.

    >>> PrefixTuningConfig(task_type="SEQ_CLS").peft_type
    'FORETOKEN_PREFIX_TUNING'
    """

    method_type: ClassVar[str] = "FORETOKEN_PREFIX_TUNING"
    peft_types: ClassVar[tuple[str, ...]] = ("PREFIX_TUNING",)

    def build(self, dimensions: Dimensions) -> Sites:
        """Return score columns for every attention, those of a decoder to its encoder included."""
        return prefix_sites(self, dimensions)

    def is_cache(self) -> bool:
        """Tell whether in a causal model the prefix is only keys and values."""
        return not self.position_free


def prefix_sites(
    config: PrefixConfig,
    dimensions: Dimensions,
    *,
    score_mask: Callable[[Tensor], Tensor] | None = None,
    score_dropout: float = 0.0,
) -> Sites:
    """Return columns for every attention, each with its own keys and values."""
    shapes = dimensions.attentions
    widths = [2 * shape.num_key_value_heads * shape.head_dim for shape in shapes]
    prefixes = make_prefixes(config, widths=widths, hidden_size=dimensions.hidden_size)
    return Sites(
        attention={
            index: PrefixKeyValues(
                prefix,
                config.num_virtual_tokens,
                shape.num_key_value_heads,
                shape.head_dim,
                dropout=config.prefix_dropout,
                position_free=config.position_free,
                score_mask=score_mask,
                score_dropout=score_dropout,
            )
            for index, (prefix, shape) in enumerate(zip(prefixes, shapes, strict=True))
        }
    )


class PrefixKeyValues(ScoreColumns):
    """P keys and values of one attention, as one (P, 2 H_kv K) matrix as in peft's checkpoints.

    Attributes:
        score_mask: changes the (B, H, N, P) scores before the softmax; None: unchanged scores.
    """

    def __init__(
        self,
        prefix: Prefix | ProjectedPrefix,
        num_columns: int,
        heads: int,
        head_dim: int,
        *,
        dropout: float,
        position_free: bool = False,
        score_mask: Callable[[Tensor], Tensor] | None = None,
        score_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.num_columns = num_columns
        self.heads = heads
        self.head_dim = head_dim
        self.position_free = position_free
        self.dropout = nn.Dropout(dropout)
        self.score_mask = score_mask
        self.score_dropout = nn.Dropout(score_dropout)
        self.are_keys = score_mask is None

    def pair(self) -> Tensor:
        """Return P_k and P_v: (2, H_kv, P, K)."""
        return self.prefix().view(self.num_columns, 2, self.heads, self.head_dim).permute(1, 2, 0, 3)

    def halves(self, like: Tensor, documents: int) -> tuple[Tensor, Tensor]:
        """Return P_k and P_v as (B, H_kv, P, K) each, in the type of ``like``."""
        keys, values = self.pair().to(like.dtype)[:, None].expand(-1, documents, -1, -1, -1)
        return self.dropout(keys), self.dropout(values)

    def keys(self, query: Tensor, documents: int) -> tuple[Tensor, Tensor] | None:
        """Return P_k and P_v, (B, H_kv, P, K) each; None with a score mask."""
        # reference.prefix_tuning: P_k and P_v, for the softmax over [prefix; text]
        return self.halves(query, documents) if self.score_mask is None else None

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, P): ``q P_k`` times scale, through the score mask."""
        scores = self.unmasked_scores(query, scale)
        return scores if self.score_mask is None else self.score_mask(self.score_dropout(scores))

    def unmasked_scores(self, query: Tensor, scale: float) -> Tensor:
        """(B, H, N, K) -> (B, H, N, P): ``q P_k`` times scale."""
        keys, _ = self.halves(query, query.shape[0])
        return query @ repeat_heads(keys, query.shape[1]).transpose(-1, -2) * scale

    def combine(self, out: Tensor, probabilities: Tensor, query: Tensor) -> Tensor:
        """Add ``p P_v``."""
        _, values = self.halves(query, query.shape[0])
        # reference.prefix_tuning: the weights of P_k times P_v, and the text's part
        return out + probabilities.to(out.dtype) @ repeat_heads(values, query.shape[1])

    def initialise_from(self, states: FrozenStates, index: int) -> None:
        """Set keys and values to those of a text."""
        write_prefix(self.prefix, (states.free if self.position_free else states.attentions)[index])
