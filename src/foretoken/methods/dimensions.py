"""The numbers of a backbone that a method may depend on, and the places that every family has.

Shapes: D model width, H heads, K head width, V vocabulary, E width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn


@dataclass(frozen=True)
class AttentionShape:
    """One attention module: of a layer's self-attention, or of a decoder's attention to the encoder.

    Attributes:
        num_heads: H.
        num_key_value_heads: H_kv, which divides H.
        head_dim: K.
        query_maps: how many query projections it has (Longformer has one more for its global tokens).
        is_cross: the keys are the encoder's; a prefix of the decoder is not among them.
        has_global: some keys are seen by every query while the others are seen in a window.
    """

    num_heads: int
    num_key_value_heads: int
    head_dim: int
    query_maps: int = 1
    is_cross: bool = False
    has_global: bool = False


@dataclass(frozen=True)
class Dimensions:
    """The numbers of a backbone that a method may depend on, and its frozen token embeddings.

    Layers are counted through all stacks: an encoder-decoder's decoder goes on where its encoder ends.

    Attributes:
        first_layers: the layers that open a stack; a prefix enters there.
        attentions: entry i < num_layers is layer i's self-attention; the decoder's attentions to the encoder follow.
        embedding: the frozen (V, E) token embeddings; E is the model's width in most families.
        biases: the path of every module of the body that adds a bias -> the bias's length.
        heads: the modules that the task adds to the body; they are trained in full and saved.
        trained_tokens: their embeddings are trained beside this adapter, and those of ``embedding`` mean nothing.
    """

    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    first_layers: tuple[int, ...] = (0,)
    attentions: tuple[AttentionShape, ...] = ()
    embedding: nn.Embedding | None = None
    biases: Mapping[str, int] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    trained_tokens: tuple[int, ...] = ()

    def fingerprint(self) -> dict[str, str | int]:
        """Return what a saved adapter remembers of its backbone."""
        numbers = ("hidden_size", "num_layers", "num_heads", "num_key_value_heads", "head_dim", "vocab_size")
        return {name: getattr(self, name) for name in ("model_type", *numbers)}


@dataclass(frozen=True)
class Place:
    """A module that every family has, under a name that is the same in all of them.

    Attributes:
        kind: ``query`` (a query projection), ``attention`` (an attention's output projection) or ``feed_forward``
            (from what enters a layer's feed-forward block to what leaves it, before the residual sum).
        index: the attention's index in ``Dimensions.attentions``, or the layer's for ``feed_forward``.
        part: which of the attention's query projections.
    """

    kind: Literal["query", "attention", "feed_forward"]
    index: int
    part: int = 0
