"""Encoders that run a batch of documents as one run of tokens: what their families share.

The encoder's own module packs what enters it and unpacks what leaves it; between the two, transformers' own layers see
one long document (1, S, D), and every hook, LoRA and checkpoint in them works as before.

Shapes: B batch, N text tokens, P prefix length, S tokens of all documents with their prefixes, D model width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses
from torch.utils.hooks import RemovableHandle

from foretoken.attention.choose import packs
from foretoken.attention.kernels import seen_by
from foretoken.attention.packed import PackedBatch, packed_batch_of
from foretoken.backbones.base import ADAPTER, AttentionAdapter, Backbone, has_submodule
from foretoken.backbones.module_value import Arguments, Keywords, ModuleValue
from foretoken.backbones.pooling import POOLING

RECORDED = ("hidden_states", "attentions")
PADDING_HEADS = ("ForQuestionAnswering",)


@dataclass(frozen=True)
class HeadInputs:
    """What the head of the model that runs now reads of its encoder.

    Attributes:
        first_token_only: each document's first token alone, of the last hidden states.
        padding: the states of padding too, as question answering does: its softmax goes over all positions.
        last_layer_only: the last hidden states alone, by a mask of tokens.
    """

    first_token_only: bool
    padding: bool
    last_layer_only: bool


# on an encoder while a model runs; absent where the body itself was called
HEAD_INPUTS = ModuleValue[HeadInputs]("foretoken_head_inputs")


class HeadInputHooks:
    """Hooks of a model that note on its encoder what the head reads."""

    def __init__(self, body: nn.Module, encoder: nn.Module, *, first_token_only: bool, padding: bool) -> None:
        self.body = body
        self.encoder = encoder
        self.first_token_only = first_token_only
        self.padding = padding

    def before(self, model: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        """Note it: a forward pre-hook of the model."""
        config: Any = model.config
        recorded = any(kwargs.get(f"output_{name}", getattr(config, f"output_{name}", None)) for name in RECORDED)
        given = (*args, *kwargs.values())  # of finished masks there may be one for each kind of layer
        has_full_mask = any(isinstance(x, dict) or (isinstance(x, Tensor) and x.dim() == 4) for x in given)
        last_layer_only = not (recorded or has_full_mask)
        pooling = POOLING.get(self.body)
        first = self.first_token_only and not recorded and (pooling is None or pooling.pool == "first")
        HEAD_INPUTS.set(self.encoder, HeadInputs(first, self.padding, last_layer_only))

    def after(self, model: nn.Module, args: Any, output: Any) -> None:
        """Remove the note: a forward hook that also runs after a failed pass."""
        HEAD_INPUTS.pop(self.encoder)


def note_head_inputs(model: nn.Module, body: nn.Module, backbone: Backbone) -> list[RemovableHandle]:
    """Let the encoder know what the model's head reads of it, where the family packs; return the hooks' handles."""
    stack, kind = backbone.stacks[0], type(model).__name__
    if not backbone.packs or not has_submodule(stack.module(body), stack.end):
        return []
    encoder = stack.module(body).get_submodule(stack.end)
    first_token_only = bool(backbone.first_token_heads) and kind.endswith(backbone.first_token_heads)
    padding = kind.endswith(PADDING_HEADS)
    hooks = HeadInputHooks(body, encoder, first_token_only=first_token_only, padding=padding)
    return [
        model.register_forward_pre_hook(hooks.before, with_kwargs=True),
        model.register_forward_hook(hooks.after, always_call=True),
        *backbone.note_head(model, body),
    ]


def may_pack(encoder: nn.Module, adapter: AttentionAdapter | None, hidden: Tensor) -> bool:
    """Tell whether a batch is packed; not where adapters are disabled: the frozen model's output is what it was."""
    inputs = HEAD_INPUTS.get(encoder)
    reads_padding = inputs is not None and inputs.padding
    agreed = adapter is None or (adapter.may_pack and not adapter.rests)
    return packs(hidden.device) and not reads_padding and agreed


def while_packed(adapter: AttentionAdapter | None, batch: PackedBatch) -> AbstractContextManager[None]:
    """Return a context in which the adapters know that the hidden states are packed."""
    return nullcontext() if adapter is None else adapter.packed(batch)


def one_document(adapter: AttentionAdapter | None, number: int) -> AbstractContextManager[None]:
    """Return a context in which one document of a packed batch is computed by itself."""
    return nullcontext() if adapter is None else adapter.document(number)


def prefix_length_of(adapter: AttentionAdapter | None) -> int:
    """Return how many virtual tokens stand in front of the text: P."""
    return 0 if adapter is None else adapter.prefix_length


def prefix_mask_of(adapter: AttentionAdapter | None) -> Tensor | None:
    """Return which places of the prefix a document has, (B, P) bool; None where every document has all."""
    return None if adapter is None else adapter.partial_prefix


def with_own_prefix(batch: PackedBatch, attention: nn.Module) -> PackedBatch:
    """Return the batch as an attention sees it: the prefix may enter before a later layer than the first."""
    return batch.with_prefix(prefix_length_of(ADAPTER.get(attention)))


def unpack_first_tokens(first: Tensor, prefix_length: int) -> Tensor:
    """(1, B, D) first tokens -> (B, P + 1, D), as if the texts were one token long; nobody reads the prefix."""
    return F.pad(first.transpose(0, 1), (0, 0, prefix_length, 0))


def is_watched(layer: Any) -> bool:
    """Tell whether hooks of the user's would see, or miss, that only a few of a layer's states are computed."""
    attention = layer.attention
    return bool(layer._forward_hooks or attention._forward_hooks or attention._forward_pre_hooks)


class PackedPass:
    """A pass that runs packed: its batch, what the adapters know of it, and the hooks that begin and end it."""

    def __init__(self) -> None:
        self.batch: PackedBatch | None = None
        self.context: AbstractContextManager[None] | None = None
        self.handles: list[RemovableHandle] = []

    def begin(self, adapter: AttentionAdapter | None, masked: Tensor) -> PackedBatch:
        """Return the batch of (B, N) bool padding, no token of which is global, and let the adapters know."""
        batch = self.batch = packed_batch_of(
            masked,
            torch.zeros_like(masked),
            prefix_length=prefix_length_of(adapter),
            prefix_mask=prefix_mask_of(adapter),
        )
        self.context = while_packed(adapter, batch)
        self.context.__enter__()
        return batch

    def end(self) -> None:
        """Let the hidden states be padded again."""
        self.batch = None
        if self.context is not None:
            context, self.context = self.context, None
            context.__exit__(None, None, None)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()


class FirstLayerPacks(PackedPass):
    """Packs a batch where an encoder runs its layers itself: before the first layer is called, until the last has run.

    Args:
        encoder: the module that knows what the head reads.
        layers: its layers.
        attention: path of the attention in a layer.
    """

    def __init__(self, encoder: nn.Module, layers: list[nn.Module], attention: str) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = layers
        self.path = attention

    def entering(
        self, layer: nn.Module, hidden: Tensor, mask: Tensor | PackedBatch | None
    ) -> tuple[Tensor, Tensor | PackedBatch | None]:
        """Return what a layer is called with: the states packed by the first one, and the batch in the mask's place."""
        adapter = ADAPTER.get(self.layers[0].get_submodule(self.path))
        if layer is self.layers[0] and isinstance(mask, Tensor) and self.may_begin(adapter, hidden):
            hidden = self.begin(adapter, masked_texts(mask, hidden)).pack_text(hidden)
        return hidden, mask if self.batch is None else self.batch

    def may_begin(self, adapter: AttentionAdapter | None, hidden: Tensor) -> bool:
        """Tell whether this pass is packed."""
        inputs = HEAD_INPUTS.get(self.encoder)
        return inputs is not None and inputs.last_layer_only and may_pack(self.encoder, adapter, hidden)

    def leaving(self, hidden: Tensor) -> Tensor:
        """Unpack the hidden states that leave the last layer."""
        assert self.batch is not None
        batch = with_own_prefix(self.batch, self.layers[-1].get_submodule(self.path))
        self.end()
        return batch.unpack(hidden)


def masked_texts(mask: Tensor, hidden: Tensor) -> Tensor:
    """Return the (B, N) bool mask of padding, from a layer's (B, 1, 1 or N, N) mask: every real token sees itself."""
    seen = seen_by(mask)[:, 0]
    own = seen[:, 0] if seen.shape[1] == 1 else seen.diagonal(dim1=1, dim2=2)
    return ~own.expand(hidden.shape[0], -1)
