"""ModernBERT over a run of documents without padding.

The body runs its layers itself. The first layer, of our class as all are, packs what it is called with, outside of
gradient checkpointing and before the prefix enters; a hook of the final norm unpacks. Linear maps and norms run
without padding, attention with it, as in BERT.

Shapes: B documents, P prefix length, N tokens of the padded texts, T real tokens of all, S = B P + T, K head width, D
model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer

from foretoken.attention.packed import PackedBatch
from foretoken.backbones.attention_interface import attach_interface, detach_interface
from foretoken.backbones.module_value import Arguments, Keywords, ModuleValue
from foretoken.backbones.packing import FirstLayerPacks, with_own_prefix


class BodyHooks(FirstLayerPacks):
    """Pack what enters the first layer, and unpack what leaves the last one."""

    def __init__(self, body: Any) -> None:
        super().__init__(body, list(body.layers), "attn")
        self.handles = [
            # after the tuner's hook, which notes how queries are rotated
            *(layer.attn.register_forward_pre_hook(pack_rotations, with_kwargs=True) for layer in body.layers),
            body.final_norm.register_forward_pre_hook(self.before_norm),
            body.register_forward_hook(self.after, prepend=True, always_call=True),
        ]

    def before_norm(self, norm: nn.Module, args: Arguments) -> Any:
        """Unpack the hidden states that leave the last layer."""
        return None if self.batch is None else (self.leaving(args[0]),)

    def after(self, body: nn.Module, args: Any, output: Any) -> None:
        """Forget the batch of a pass that failed."""
        self.end()


HOOKS = ModuleValue[BodyHooks]("foretoken_packing")  # on the body, and on each layer


class PackingModernBertLayer(ModernBertEncoderLayer):
    """A layer that asks the body's hooks what it is called with, before gradient checkpointing notes it."""

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """(B, N, D) or (1, S, D) -> the same, or (1, S, D) from the first layer of a packed pass."""
        hooks = HOOKS.get(self)
        if hooks is not None and not args:
            hidden_states, mask = hooks.entering(self, hidden_states, kwargs.get("attention_mask"))
            kwargs["attention_mask"] = mask
        return super().__call__(hidden_states, *args, **kwargs)


def pack_rotations(attention: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
    """Give the tokens of a run their own rotations, (1 or B, P + N, K) -> (1, S, K), once for layers given the same."""
    batch = kwargs.get("attention_mask")
    if not isinstance(batch, PackedBatch):
        return None
    batch, (cosine, sine) = with_own_prefix(batch, attention), kwargs["position_embeddings"]

    def packed(x: Tensor) -> Tensor:
        return batch.pack(x.expand(batch.size, -1, -1))

    rotations = batch.remembered(cosine, packed), batch.remembered(sine, packed)
    return args, {**kwargs, "position_embeddings": rotations}


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
