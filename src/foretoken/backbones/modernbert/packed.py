"""ModernBERT over a run of documents without padding.

The body runs its layers itself. The first layer, of our class as all are, packs what it is called with, outside of
gradient checkpointing and before the prefix enters; a hook of the final norm unpacks. Linear maps and norms run
without padding, attention with it, as in BERT.

Shapes: B documents, P prefix length, N tokens of the padded texts, T real tokens of all, S = B P + T, K head width, D
model width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from foretoken.attention.kernels import seen_by
from foretoken.attention.packed import PackedBatch, packed_batch_of
from foretoken.backbones.attention_interface import attach_interface, detach_interface
from foretoken.backbones.base import ADAPTER
from foretoken.backbones.module_value import Arguments, Keywords, ModuleValue
from foretoken.backbones.packing import (
    HEAD_INPUTS,
    may_pack,
    prefix_length_of,
    prefix_mask_of,
    while_packed,
    with_own_prefix,
)


class BodyHooks:
    """Pack what enters the first layer, and unpack what leaves the last one."""

    def __init__(self, body: Any) -> None:
        self.body = body
        self.batch: PackedBatch | None = None
        self.context: AbstractContextManager[None] | None = None
        self.handles = [
            # after the tuner's hook, which notes how queries are rotated
            *(layer.attn.register_forward_pre_hook(pack_rotations, with_kwargs=True) for layer in body.layers),
            body.final_norm.register_forward_pre_hook(self.before_norm),
            body.register_forward_hook(self.after, prepend=True, always_call=True),
        ]

    def entering(self, layer: Any, hidden: Tensor, kwargs: Keywords) -> tuple[Tensor, Keywords]:
        """Return what a layer is called with: the states packed by the first one, and the batch in the mask's place."""
        if layer is self.body.layers[0] and self.begins(layer, hidden, kwargs.get("attention_mask")):
            assert self.batch is not None
            hidden = self.batch.pack_text(hidden)
        return hidden, kwargs if self.batch is None else {**kwargs, "attention_mask": self.batch}

    def begins(self, layer: Any, hidden: Tensor, mask: Tensor | None) -> bool:
        """Tell whether this pass is packed, and let the adapters know."""
        inputs, adapter = HEAD_INPUTS.get(self.body), ADAPTER.get(layer.attn)
        if inputs is None or not inputs.last_layer_only or mask is None or not may_pack(self.body, adapter, hidden):
            return False
        masked, length = masked_texts(mask, hidden), prefix_length_of(adapter)
        of_prefix = prefix_mask_of(adapter)
        self.batch = packed_batch_of(masked, torch.zeros_like(masked), prefix_length=length, prefix_mask=of_prefix)
        self.context = while_packed(adapter, self.batch)
        self.context.__enter__()
        return True

    def before_norm(self, norm: nn.Module, args: Arguments) -> Any:
        """Unpack the hidden states that leave the last layer."""
        if self.batch is None:
            return None
        batch = with_own_prefix(self.batch, self.body.layers[-1].attn)
        self.end()
        return (batch.unpack(args[0]),)

    def after(self, body: nn.Module, args: Any, output: Any) -> None:
        """Forget the batch of a pass that failed."""
        self.end()

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


HOOKS = ModuleValue[BodyHooks]("foretoken_packing")  # on the body, and on each layer


class PackingModernBertLayer(ModernBertEncoderLayer):
    """A layer that asks the body's hooks what it is called with, before gradient checkpointing notes it."""

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """(B, N, D) or (1, S, D) -> the same, or (1, S, D) from the first layer of a packed pass."""
        hooks = HOOKS.get(self)
        if hooks is not None and not args:
            hidden_states, kwargs = hooks.entering(self, hidden_states, kwargs)
        return super().__call__(hidden_states, *args, **kwargs)


def pack_rotations(attention: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
    """Give the tokens of a run their own rotations, (1 or B, P + N, K) -> (1, S, K), once for layers given the same."""
    batch = kwargs.get("attention_mask")
    if not isinstance(batch, PackedBatch):
        return None
    batch, given = with_own_prefix(batch, attention), kwargs["position_embeddings"]
    known = batch.rotations.get(id(given[0]))
    if known is None:
        packed = tuple(batch.pack(x.expand(batch.size, -1, -1)) for x in given)
        known = batch.rotations[id(given[0])] = given, packed
    return args, {**kwargs, "position_embeddings": known[1]}


def masked_texts(mask: Tensor, hidden: Tensor) -> Tensor:
    """Return the (B, N) bool mask of padding, from a layer's (B, 1, 1 or N, N) mask: every real token sees itself."""
    seen = seen_by(mask)[:, 0]
    own = seen[:, 0] if seen.shape[1] == 1 else seen.diagonal(dim1=1, dim2=2)
    return ~own.expand(hidden.shape[0], -1)


def attach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let attention ask its adapter, and the body pack its batches."""
    attach_interface(body, attentions)
    if HOOKS.get(body) is not None:
        return
    hooks = BodyHooks(body)
    HOOKS.set(body, hooks)
    for layer in body.get_submodule("layers"):  # type: ignore[attr-defined]
        layer.__class__ = PackingModernBertLayer
        HOOKS.set(layer, hooks)


def detach_modernbert(body: nn.Module, attentions: list[nn.Module]) -> None:
    """Let them be transformers' own again."""
    detach_interface(body, attentions)
    hooks = HOOKS.pop(body)
    if hooks is None:
        return
    hooks.remove()
    for layer in body.get_submodule("layers"):  # type: ignore[attr-defined]
        layer.__class__ = ModernBertEncoderLayer
        HOOKS.pop(layer)
