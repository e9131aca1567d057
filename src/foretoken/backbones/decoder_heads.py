"""What the heads of causal decoders read: which states, and so whether a batch may run without its padding.

The head of a language model runs without padding where the body did, and so does its loss: the map to the vocabulary
and the softmax over it are a large part of all.

Shapes: B documents, N tokens of the padded texts, T real tokens of all, D model width, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses
from torch.utils.hooks import RemovableHandle
from transformers.loss.loss_utils import ForCausalLMLoss

from foretoken.attention.choose import packs
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.module_value import Arguments, Keywords
from foretoken.backbones.packing import HEAD_INPUTS, IGNORED
from foretoken.backbones.pooling import POOLING

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")


def next_tokens(labels: Tensor | None, shifted: Tensor | None) -> Tensor | None:
    """Return the token that each state is to predict, (B, N), as transformers' loss finds it; None without labels."""
    return F.pad(labels, (0, 1), value=IGNORED)[:, 1:] if shifted is None and labels is not None else shifted


def predicted(model: Any, inputs: Keywords, mask: Tensor) -> Tensor:
    """Return which states a language model's loss reads, or its caller as far as that is known: (B, N) bool."""
    kept, shifted = inputs.get("logits_to_keep"), next_tokens(inputs.get("labels"), inputs.get("shift_labels"))
    read = torch.zeros_like(mask, dtype=torch.bool)
    if isinstance(kept, Tensor):
        read[:, kept] = True
    elif kept:
        read[:, -kept:] = True
    return read if shifted is None else read | (shifted != IGNORED)


def labelled(model: Any, inputs: Keywords, mask: Tensor) -> Tensor:
    """Return which states a tagger's loss reads: (B, N) bool."""
    labels = inputs.get("labels")
    return torch.zeros_like(mask, dtype=torch.bool) if labels is None else labels != IGNORED


def last(model: Any, inputs: Keywords, mask: Tensor) -> Tensor:
    """Return which state of each document a classifier reads, by the ids and not by the mask: (B, N) bool."""
    ids, padding = inputs.get("input_ids"), model.config.get_text_config().pad_token_id
    places = torch.arange(mask.shape[1], device=mask.device)
    if ids is None or padding is None:
        return (places == mask.shape[1] - 1).expand_as(mask)
    return places == (places * (ids != padding)).argmax(dim=-1, keepdim=True)


READ: dict[str, Callable[[Any, Keywords, Tensor], Tensor]] = {
    **dict.fromkeys(LANGUAGE_MODELS, predicted),
    "ForTokenClassification": labelled,
    "ForSequenceClassification": last,
}


def reads_padding(model: Any, body: nn.Module, inputs: Keywords) -> bool:
    """Tell whether a head reads the states of padding, or may do so."""
    mask = inputs.get("attention_mask")
    if model is body or POOLING.get(body) is not None or not isinstance(mask, Tensor):
        return False
    states = next((read for ending, read in READ.items() if type(model).__name__.endswith(ending)), None)
    if states is None or mask.dim() != 2:
        return True
    read = states(model, inputs, mask)
    return read.shape != mask.shape or bool((read & (mask == 0)).any())


class DecoderHead:
    """Hooks of a model that note whether its head reads padding, and let a language model's run without it.

    A loss that the user put in the place of transformers' own stays, and gets padded logits.
    """

    def __init__(self, model: nn.Module, body: nn.Module) -> None:
        self.body = body
        self.argument_names = list(inspect.signature(type(model).forward).parameters)[1:]
        self.handles: list[RemovableHandle] = []
        self.batch: PackedBatch | None = None
        self.logits: tuple[Tensor, int, Tensor] | None = None  # unpacked, their version, and packed

    def before(self, model: Any, args: Arguments, kwargs: Keywords) -> None:
        """Note it, and wait for the states: a forward pre-hook of the model."""
        noted = HEAD_INPUTS.get(self.body)
        if noted is None or not packs(next(self.body.parameters()).device):
            return
        inputs = dict(zip(self.argument_names, args, strict=False)) | kwargs
        if reads_padding(model, self.body, inputs):
            noted.padding = True
        elif type(model).__name__.endswith(LANGUAGE_MODELS):
            # found in every pass: peft may put a module of its own in the head's place, or copy it with its hooks
            head = model.get_output_embeddings()
            self.handles = [  # the innermost: what the user's hooks see is padded
                head.register_forward_pre_hook(self.before_vocabulary),
                head.register_forward_hook(self.after_vocabulary, prepend=True),
            ]
            if model.loss_function is ForCausalLMLoss:
                model.loss_function = self.loss

    def after(self, model: nn.Module, args: Any, output: Any) -> None:
        """Leave the head alone: a forward hook that also runs after a failed pass."""
        for handle in self.handles:
            handle.remove()
        self.handles, self.batch, self.logits = [], None, None
        if getattr(model, "_loss_function", None) == self.loss:
            del model._loss_function

    def before_vocabulary(self, head: nn.Module, args: Arguments) -> Any:
        """(B, N, D) -> (1, T, D), where that is what left the body."""
        noted = HEAD_INPUTS.get(self.body)
        batch = None if noted is None else noted.packed
        self.batch = batch if batch is not None and args[0].shape[:2] == (batch.size, batch.length) else None
        return None if self.batch is None else (self.batch.pack_text(args[0]), *args[1:])

    def after_vocabulary(self, head: nn.Module, args: Arguments, logits: Tensor) -> Any:
        """(1, T, V) -> (B, N, V), zero where there is padding."""
        if self.batch is None:
            return None
        padded = self.batch.with_prefix(0).unpack(logits)
        self.logits = padded, padded._version, logits
        return padded

    def loss(
        self,
        logits: Tensor,
        labels: Tensor | None,
        vocab_size: int,
        *,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return transformers' loss of the logits (B, N, V), without the padding where there is none in the body."""
        batch, wanted = self.batch, next_tokens(labels, shift_labels)
        if batch is None or self.logits is None or wanted is None or logits.shape[:2] != (batch.size, batch.length):
            return ForCausalLMLoss(logits, labels, vocab_size, shift_labels=shift_labels, **kwargs)
        unpacked, version, packed = self.logits
        is_same = logits is unpacked and logits._version == version  # no hook of the user's changed them
        kept = packed if is_same else batch.pack_text(logits)
        return ForCausalLMLoss(kept, None, vocab_size, shift_labels=batch.pack_text(wanted), **kwargs)


def note_decoder_head(model: nn.Module, body: nn.Module) -> list[RemovableHandle]:
    """Let the body know what the model's head reads, and the head which states there are; return the hooks' handles."""
    head = DecoderHead(model, body)
    return [
        model.register_forward_pre_hook(head.before, with_kwargs=True),
        model.register_forward_hook(head.after, always_call=True),
    ]
