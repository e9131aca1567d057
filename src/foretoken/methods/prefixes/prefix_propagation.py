"""Prefix-propagation (Li et al. 2023): a prefix of hidden states that passes through all layers of the stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefixes.prefix import PrefixConfig, propagated_prefixes
from foretoken.methods.sites import Sites


@dataclass
class PrefixPropagationConfig(PrefixConfig):
    """Prefix-propagation: one trained (P, D) matrix per layer, added to a prefix of the hidden states.

    Li et al. 2023, section 3.1 (eq. 1): the input of layer 0 is ``cat(P^(0), C)``, C the embedding output; before layer
    l > 0 the first P hidden states get ``+ P^(l)``. The prefix attends to all tokens, and all tokens attend to it (in
    sparse models it consists of global tokens); it is removed before the head. The text keeps its own positions.
    L P D parameters, half of prefix-tuning's.

    Raises:
        ConfigError: a value that cannot work, e.g. ``num_virtual_tokens`` below 1.

    >>> PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8).peft_type
    'FORETOKEN_PREFIX_PROPAGATION'
    """

    method_type: ClassVar[str] = "FORETOKEN_PREFIX_PROPAGATION"
    peft_types: ClassVar[tuple[str, ...]] = ("PREFIX_TUNING",)
    starts_from: ClassVar[str] = "vocabulary"

    def build(self, dimensions: Dimensions) -> Sites:
        """Return one entry per layer; the first entry of each stack adds the prefix."""
        return Sites(layers=propagated_prefixes(self, dimensions))
