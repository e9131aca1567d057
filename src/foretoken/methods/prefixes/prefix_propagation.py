"""Prefix-propagation (Li et al. 2023): a prefix of hidden states that passes through all layers of the stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefixes.prefix import Prefix, PrefixConfig, ProjectedPrefix, make_prefixes, write_prefix
from foretoken.methods.sites import FrozenStates, LayerEntry, Sites


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

    def is_cache(self) -> bool:
        """Tell whether in a causal model the prefix is only keys and values, as it sees no text."""
        return not self.position_free


def propagated_prefixes(config: PrefixConfig, dimensions: Dimensions) -> dict[int, LayerEntry]:
    """Return one entry per layer, each with a (P, D) prefix."""
    width, length = dimensions.hidden_size, config.num_virtual_tokens
    prefixes = make_prefixes(config, widths=[width] * dimensions.num_layers, hidden_size=width)
    return {
        layer: PropagatedPrefix(
            prefix,
            length,
            first=layer in dimensions.first_layers,
            dropout=config.prefix_dropout,
            position_free=config.position_free,
        )
        for layer, prefix in enumerate(prefixes)
    }


class PropagatedPrefix(LayerEntry):
    """The prefix of layer 0, or the matrix that is added to it before a later layer."""

    def __init__(
        self,
        prefix: Prefix | ProjectedPrefix,
        prefix_length: int,
        *,
        first: bool,
        dropout: float,
        position_free: bool = False,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.prefix_length = prefix_length
        self.first = first
        self.position_free = position_free
        self.dropout = nn.Dropout(dropout)

    def new_prefix(self, batch_size: int) -> Tensor:
        """Return P^(0) for every document: (B, P, D)."""
        # reference.propagated: P of layer 0
        prefix = self.prefix()
        return self.dropout(prefix.expand(batch_size, *prefix.shape))

    def on_prefix(self, prefix: Tensor) -> Tensor:
        """Add P^(l) to the first P hidden states, (B, P, D); at layer 0 they are P^(0) already."""
        if self.first:
            return prefix
        # reference.propagated: P + C[:P] of a later layer
        return prefix + self.dropout(self.prefix().expand_as(prefix)).to(prefix.dtype)

    def initialise_from(self, states: FrozenStates, layer: int) -> None:
        """Set the prefix to the first layer's input for a text; the matrices of later layers become 0."""
        write_prefix(self.prefix, states.entering[layer] if self.first else torch.zeros(()))
