"""Encoders that run a batch of documents as one run of tokens: what their families share.

The encoder's own module packs what enters it and unpacks what leaves it; between the two, transformers' own layers see
one long document (1, S, D), and every hook, LoRA and checkpoint in them works as before.

Shapes: B batch, N text tokens, P rows in front of the text, S tokens of all documents with their rows, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses
from torch.utils.hooks import RemovableHandle

from foretoken.attention.choose import packs
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.base import Backbone, Branch, has_submodule

READS = "foretoken_reads"  # an encoder's mark: what the model that runs now reads of it
RECORDED = ("hidden_states", "attentions")
PADDING_HEADS = ("ForQuestionAnswering",)


def may_pack(encoder: nn.Module, port: Branch | None, hidden: Tensor) -> bool:
    """Tell whether a batch is packed.

    Not where each document names its adapter, as peft's LoRA looks for documents, and not where adapters are disabled,
    as the frozen model's output is to be what it was.
    """
    reading = reading_of(encoder)
    reads_padding = reading is not None and reading.padding
    agreed = port is None or (port.mixed_size is None and not port.rests)
    return packs(hidden.device) and not reads_padding and agreed


def entered(port: Branch | None, stream: PackedBatch) -> AbstractContextManager[None]:
    """Let the adapters know, for a while, that the hidden states are packed."""
    return nullcontext() if port is None else port.packed(stream)


def rows_of(port: Branch | None) -> int:
    """Return how many rows stand in front of the text: P."""
    return 0 if port is None else port.rows_here


def trains(modules: Iterable[nn.Module]) -> bool:
    """Tell whether one of these modules is trained: its gradient must be there, be it zero."""
    return any(parameter.requires_grad for module in modules for parameter in module.parameters())


def padded_front(first: Tensor, rows: int) -> Tensor:
    """(1, B, D) first tokens -> (B, P + 1, D), as if the texts were one token long; nobody reads the rows."""
    return F.pad(first.transpose(0, 1), (0, 0, rows, 0))


@dataclass(frozen=True)
class Reading:
    """What the model that runs now reads of its encoder.

    Attributes:
        first: each document's first token alone, of the last hidden states.
        padding: the states of padding too, as question answering does: its softmax goes over all positions.
        is_plain: the last hidden states alone, by a mask of tokens.
    """

    first: bool
    padding: bool
    is_plain: bool


class HeadReads:
    """Lets an encoder know what the model that runs now reads of it."""

    def __init__(self, encoder: nn.Module, *, first: bool, padding: bool) -> None:
        self.encoder = encoder
        self.first = first
        self.padding = padding

    def before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Set the mark: a forward pre-hook of the model."""
        config: Any = model.config
        recorded = any(kwargs.get(f"output_{name}", getattr(config, f"output_{name}", None)) for name in RECORDED)
        odd = any(isinstance(x, Tensor) and x.dim() == 4 for x in (*args, *kwargs.values()))
        self.encoder.__dict__[READS] = Reading(self.first and not recorded, self.padding, not (recorded or odd))

    def after(self, model: nn.Module, args: Any, output: Any) -> None:
        """Take it away: a forward hook that runs whatever happens."""
        self.encoder.__dict__.pop(READS, None)


def watch(model: nn.Module, body: nn.Module, backbone: Backbone) -> list[RemovableHandle]:
    """Let the encoder know what the model reads of it, where the family packs."""
    stack, kind = backbone.stacks[0], type(model).__name__
    if not backbone.first_token_heads or not has_submodule(stack.module(body), stack.end):
        return []
    encoder = stack.module(body).get_submodule(stack.end)
    reads = HeadReads(encoder, first=kind.endswith(backbone.first_token_heads), padding=kind.endswith(PADDING_HEADS))
    return [
        model.register_forward_pre_hook(reads.before, with_kwargs=True),
        model.register_forward_hook(reads.after, always_call=True),
    ]


def reading_of(encoder: nn.Module) -> Reading | None:
    """Return what the model that runs now reads; None where somebody has called the body itself."""
    return encoder.__dict__.get(READS)


def is_watched(layer: Any) -> bool:
    """Tell whether hooks of the user's would see, or miss, that only a few of a layer's states are computed."""
    attention = layer.attention
    return bool(layer._forward_hooks or attention._forward_hooks or attention._forward_pre_hooks)
