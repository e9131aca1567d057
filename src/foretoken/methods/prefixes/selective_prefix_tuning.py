"""Selective prefix tuning (Zhang et al. 2024): prefix-tuning with a soft mask on the prefix and a loss that spreads it.

Shapes: B batch, N queries, P prefix length, H heads, K head width, W width of a prefix's keys (H_kv K).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from foretoken.errors import ConfigError
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefixes.prefix import Prefix, PrefixConfig, PrefixKeyValues, ProjectedPrefix, prefix_sites
from foretoken.methods.require import require_fraction
from foretoken.methods.sites import Sites
from foretoken.options import option


@dataclass
class SelectivePrefixTuningConfig(PrefixConfig):
    """Selective prefix tuning, SPT: prefix-tuning whose queries mask the prefix's tokens softly.

    Zhang et al. 2024, eq. 4-6: a prefix score ``s = q P_k / sqrt(K)`` gets the weight ``m(s) exp(s)`` in the softmax,
    with ``m(x) = sigmoid(alpha x)``, per head and query. Eq. 7-10: ``selective_loss_weight`` times ``SL`` is added to
    the task's loss in training, so that the prefix's tokens turn towards different directions. Parameters are those of
    prefix-tuning, and without mask and loss it is prefix-tuning.

    Args:
        alpha: steepness of the mask; the paper searches 1 to 16. None: no mask.
        selective_loss_weight: lambda of eq. 10; the paper searches 1e-4 to 1e-3. 0: no loss.
        score_dropout: probability of setting a prefix score to 0 in training, before the mask.

    Raises:
        ConfigError: a value that cannot work, e.g. ``alpha`` below 0.

    >>> SelectivePrefixTuningConfig(num_virtual_tokens=8, alpha=4.0).peft_type
    'FORETOKEN_SELECTIVE_PREFIX_TUNING'
    >>> SelectivePrefixTuningConfig(alpha=0)
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: alpha is 0; expected a number above 0 (1 to 16 in the paper), or None for no mask
    """

    alpha: float | None = option("steepness of the mask on the prefix's scores (null: no mask)", 8.0)
    selective_loss_weight: float = option("weight of the selective loss beside the task's loss (0: no loss)", 2e-4)

    score_dropout: float = option("dropout on the prefix's scores in training, before the mask", 0.0)

    method_type: ClassVar[str] = "FORETOKEN_SELECTIVE_PREFIX_TUNING"
    training_options: ClassVar[tuple[str, ...]] = (*PrefixConfig.training_options, "selective_loss_weight")

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        super().validate()
        if self.alpha is not None and not (is_finite(self.alpha) and self.alpha > 0):
            raise ConfigError(
                f"alpha is {self.alpha!r}; expected a number above 0 (1 to 16 in the paper), or None for no mask"
            )
        if not (is_finite(self.selective_loss_weight) and self.selective_loss_weight >= 0):
            raise ConfigError(
                f"selective_loss_weight is {self.selective_loss_weight!r}; "
                "expected a number from 0 (1e-4 to 1e-3 in the paper; 0 for no selective loss)"
            )

        require_fraction("score_dropout", self.score_dropout)
        if self.score_dropout and self.alpha is None:
            raise ConfigError(
                f"score_dropout is {self.score_dropout}, but alpha is None: it acts on what the mask is given; "
                "set alpha too"
            )

    def build(self, dimensions: Dimensions) -> Sites:
        """Return score columns for every attention, those of a decoder to its encoder included."""
        mask = None if self.alpha is None else SoftMask(self.alpha)
        return prefix_sites(self, dimensions, score_mask=mask, score_dropout=self.score_dropout)

    def auxiliary_loss(self, sites: Sites) -> Tensor | None:
        """Return ``lambda SL`` (eq. 10), a scalar; None with a weight of 0."""
        if not self.selective_loss_weight:
            return None
        columns = [columns for columns in sites.attention.values() if isinstance(columns, PrefixKeyValues)]
        return self.selective_loss_weight * selective_loss([key_values.prefix for key_values in columns])


@dataclass(frozen=True)
class SoftMask:
    """The mask on a prefix's scores, ``m(s) = sigmoid(alpha s)`` (eq. 5)."""

    alpha: float

    def __call__(self, scores: Tensor) -> Tensor:
        """(B, H, N, P) -> ``s + log m(s)``, which the softmax makes ``m(s) exp(s)`` (eq. 6)."""
        # reference.selective_prefix_tuning: sigmoid(alpha s) exp(s), as the logarithm that the softmax takes
        return scores + functional.logsigmoid(self.alpha * scores)


def selective_loss(prefixes: Sequence[Prefix | ProjectedPrefix]) -> Tensor:
    """Return ``SL = 1/2 sum_l (KSL_l + VSL_l)`` (eq. 9) of prefixes that yield (P, 2 W) each, without dropout.

    It is computed in float32 at least, also under autocast, as bfloat16 would round cosines to two digits.
    """
    groups: dict[tuple[torch.device, torch.Size], list[Tensor]] = {}
    for prefix in prefixes:
        with torch.autocast(next(prefix.parameters()).device.type, enabled=False):
            both = prefix()
        groups.setdefault((both.device, both.shape), []).append(both)
    losses = [sum_of_similarities(torch.stack(group)) for group in groups.values()]  # one kernel for alike layers
    return 0.5 * torch.stack([loss.to(losses[0].device) for loss in losses]).sum()


def sum_of_similarities(both: Tensor) -> Tensor:
    """(L, P, 2 W) keys and values -> the sum over layers of KSL and VSL (eq. 7, 8).

    KSL is the mean of ``|cos(P_k,i, P_k,j)|`` over the pairs i < j; with P = 1 there is none, and the sum is 0.

    >>> both = torch.tensor([[[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, -1.0, 1.0]]])  # P = 2, W = 2
    >>> round(sum_of_similarities(both).item(), 4)
    0.7071
    """
    length = both.shape[1]
    with torch.autocast(both.device.type, enabled=False):
        halves = both.unflatten(-1, (2, -1)).transpose(1, 2)  # (L, 2, P, W)
        # reference.selective_loss: KSL + VSL, summed over the layers
        unit = functional.normalize(halves.to(torch.promote_types(both.dtype, torch.float32)), dim=-1)
        cosines = unit @ unit.transpose(-1, -2)
        return cosines.abs().triu(1).sum() / max(1, length * (length - 1) // 2)


def is_finite(value: object) -> bool:
    """Tell whether ``value`` is a number that is neither infinite nor nan."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
