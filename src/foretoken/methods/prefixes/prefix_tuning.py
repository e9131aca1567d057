"""Prefix-tuning / P-tuning v2 (Li & Liang 2021; Liu et al. 2022): trained keys and values in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefixes.prefix import PrefixConfig, prefix_sites
from foretoken.methods.sites import Sites


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
