"""Prefix-propagation (Li et al. 2023): prefixes that are hidden states of their own and flow through the stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from foretoken.methods.base import FrozenStates, LayerEntry, Sites
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.prefix import Prefix, PrefixConfig, ProjectedPrefix, make_prefixes, write_prefix


@dataclass
class PrefixPropagationConfig(PrefixConfig):
    """Prefix-propagation: one trained (P, D) matrix per layer, added to rows that flow in front of the text.

    Li et al. 2023, section 3.1 (eq. 1): the input of layer 0 is ``cat(P^(0), C)``, C the embedding output; before layer
    l > 0 the first P hidden states get ``+ P^(l)``. The rows attend to everything and are attended by everything (in
    sparse models they are global tokens); they are removed before the head. The text keeps its own positions.
    L P D parameters, half of prefix-tuning's.

    Raises:
        ConfigError: a value that cannot work, e.g. ``num_virtual_tokens`` below 1.

    >>> PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8).peft_type
    'FORETOKEN_PREFIX_PROPAGATION'
    """

    method_type: ClassVar[str] = "FORETOKEN_PREFIX_PROPAGATION"
    peft_types: ClassVar[tuple[str, ...]] = ("PREFIX_TUNING",)

    def build(self, dimensions: Dimensions) -> Sites:
        """Return one entry per layer; the first one of each stack brings the rows."""
        return Sites(layers=propagated_rows(self, dimensions))

    def is_cache(self) -> bool:
        """Tell whether in a causal model the rows are nothing but keys and values: they see each other alone."""
        return not self.position_free


def propagated_rows(config: PrefixConfig, dimensions: Dimensions) -> dict[int, LayerEntry]:
    """Return one entry per layer, each with a (P, D) prefix."""
    width, rows = dimensions.hidden_size, config.num_virtual_tokens
    prefixes = make_prefixes(config, layers=dimensions.num_layers, width=width, hidden_size=width)
    return {
        layer: PropagatedRows(
            prefix,
            rows,
            first=layer in dimensions.first_layers,
            dropout=config.prefix_dropout,
            position_free=config.position_free,
        )
        for layer, prefix in enumerate(prefixes)
    }


class PropagatedRows(LayerEntry):
    """The rows of layer 0, or what is added to them before a later layer."""

    def __init__(
        self,
        prefix: Prefix | ProjectedPrefix,
        num_rows: int,
        *,
        first: bool,
        dropout: float,
        position_free: bool = False,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.num_rows = num_rows
        self.first = first
        self.position_free = position_free
        self.dropout = nn.Dropout(dropout)

    def first_rows(self, batch_size: int) -> Tensor:
        """Return P^(0) for every document: (B, P, D)."""
        prefix = self.prefix()
        return self.dropout(prefix.expand(batch_size, *prefix.shape))

    def on_rows(self, rows: Tensor) -> Tensor:
        """Add P^(l) to the (B, P, D) rows; layer 0's rows are P^(0) already."""
        if self.first:
            return rows
        return rows + self.dropout(self.prefix().expand_as(rows)).to(rows.dtype)

    def initialise_from(self, states: FrozenStates, layer: int) -> None:
        """Become what enters the first layer for a text; what is added before later layers becomes 0."""
        write_prefix(self.prefix, states.entering[layer] if self.first else torch.zeros(()))
