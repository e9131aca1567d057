"""What the prefix methods share: their options, and the prefix as a parameter or as a small network's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from foretoken.methods.base import ForetokenConfig, require_fraction, require_int, require_positive


@dataclass
class PrefixConfig(ForetokenConfig):
    """Options of the methods that train a prefix.

    Args:
        num_virtual_tokens: P, the length of the prefix.
        prefix_dropout: probability of dropping an element of the prefix in training.
        init_std: standard deviation of the prefix at the start.
        prefix_projection: train an embedding and a two-layer network that yields the prefix, instead of the prefix.
        encoder_hidden_size: width of that network (default: the model's width).
    """

    num_virtual_tokens: int = field(default=8, metadata={"help": "length of the prefix"})
    prefix_dropout: float = field(default=0.1, metadata={"help": "dropout on the prefix in training"})
    init_std: float = field(default=0.02, metadata={"help": "standard deviation of the prefix at the start"})
    prefix_projection: bool = field(
        default=False, metadata={"help": "train a two-layer network that yields the prefix"}
    )
    encoder_hidden_size: int | None = field(
        default=None, metadata={"help": "width of that network (default: the model's width)"}
    )

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        require_int("num_virtual_tokens", self.num_virtual_tokens, minimum=1)
        require_fraction("prefix_dropout", self.prefix_dropout)
        require_positive("init_std", self.init_std)
        if self.encoder_hidden_size is not None:
            require_int("encoder_hidden_size", self.encoder_hidden_size, minimum=1)


class Prefix(nn.Module):
    """A trained (P, width) matrix."""

    def __init__(self, length: int, width: int, *, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width).normal_(0.0, std))

    def forward(self) -> Tensor:
        """Return the (P, width) prefix."""
        return self.weight


class SharedProjection(nn.Module):
    """What all layers' projected prefixes share: ``tanh(E W1 + b1)``, E (P, D), W1 (D, M)."""

    def __init__(self, length: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(length, width)
        self.linear = nn.Linear(width, hidden)

    def forward(self) -> Tensor:
        """Return (P, M)."""
        return torch.tanh(self.linear(self.embedding.weight))


class ProjectedPrefix(nn.Module):
    """One layer's part of ``tanh(E W1 + b1) W2 + b2``.

    The paper's W2 is (M, L D). Each layer holds its own (M, D) columns of it, so that a layer's parameters lie
    with the layer (sharding, device maps) and a checkpointed layer never reaches into another layer's graph.
    """

    def __init__(self, shared: SharedProjection, width: int, *, owner: bool) -> None:
        super().__init__()
        if owner:
            self.shared = shared
        self._shared = (shared,)  # in a tuple: not registered a second time
        self.linear = nn.Linear(shared.linear.out_features, width)

    def forward(self) -> Tensor:
        """Return this layer's (P, width) prefix."""
        return self.linear(self._shared[0]())


def make_prefixes(config: PrefixConfig, *, layers: int, width: int, hidden_size: int) -> list[Prefix | ProjectedPrefix]:
    """Return one (P, width) prefix per layer, plain or projected."""
    return prefixes_of_widths(config, widths=[width] * layers, hidden_size=hidden_size)


def prefixes_of_widths(
    config: PrefixConfig, *, widths: Sequence[int], hidden_size: int
) -> list[Prefix | ProjectedPrefix]:
    """Return one (P, width) prefix per width, plain or projected by one network."""
    length = config.num_virtual_tokens
    if not config.prefix_projection:
        return [Prefix(length, width, std=config.init_std) for width in widths]
    shared = SharedProjection(length, hidden_size, config.encoder_hidden_size or hidden_size)
    return [ProjectedPrefix(shared, width, owner=index == 0) for index, width in enumerate(widths)]
