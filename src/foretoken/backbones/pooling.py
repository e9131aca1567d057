"""One state of each document, pooled from those of its tokens, where the head of an encoder reads nothing else.

In every family the head of sequence classification reads the first position of the body's hidden states, or what the
body's pooler makes of it. So the body yields one position here, and mask and prefix, which heads are not given, are at
hand where it is made. The body alone, when somebody else calls it, yields all positions as ever.

Shapes: B batch, N text tokens, P prefix length, D model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foretoken.backbones.module_value import Arguments, Keywords, ModuleValue
from foretoken.errors import AdapterError

ATTENTION = "attention_pool"  # the body's module that scores tokens, (B, N, D) -> (B, N, 1), for the pool of that name


def first(states: Tensor, mask: Tensor) -> Tensor:
    """Return each document's first token that is no padding: (B, N, D), (B, N) bool -> (B, D)."""
    return states[torch.arange(len(states), device=states.device), mask.int().argmax(dim=1)]


def mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over each document's tokens: (B, N, D), (B, N) bool -> (B, D)."""
    return states.masked_fill(~mask[..., None], 0).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def maximum(states: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum over each document's tokens, by dimension: (B, N, D), (B, N) bool -> (B, D)."""
    return states.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)


def token_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of the tokens' scores: (B, N, 1), (B, N) bool -> (B, N, 1), 0 for padding."""
    exact = torch.promote_types(scores.dtype, torch.float32)
    return scores.masked_fill(~mask[..., None], -torch.inf).softmax(dim=1, dtype=exact)


def attended(states: Tensor, mask: Tensor, scores: Tensor) -> Tensor:
    """Return the tokens' mean by the softmax of their (B, N, 1) scores: (B, N, D), (B, N) bool -> (B, D)."""
    weights = token_weights(scores, mask)
    return (weights.to(states.dtype) * states.masked_fill(~mask[..., None], 0)).sum(dim=1)


OF_TOKENS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"first": first, "mean": mean, "max": maximum}
POOLS = (*OF_TOKENS, "attention", "prefix")


def sentence_vectors(states: Tensor, mask: Tensor, *, pool: str = "mean") -> Tensor:
    """Return each text's vector, of length 1: (B, N, D), (B, N) bool -> (B, D)."""
    return nn.functional.normalize(OF_TOKENS[pool](states, mask), dim=-1)


class Pooling:
    """The hooks of one model by which its body yields one pooled state of each document.

    Attributes:
        pool: one of :data:`POOLS`.
        is_running: the model runs, and not the body alone.
        mask: (B, N) of the pass as the user gave it; None where all tokens are real.
        prefix: (B, D) last hidden states of the prefix's first row; None where some document has none.
    """

    def __init__(self, model: nn.Module, body: nn.Module, pool: str) -> None:
        self.pool = pool
        self.is_running = False
        self.mask: Tensor | None = None
        self.prefix: Tensor | None = None
        self.argument_names = list(inspect.signature(type(body).forward).parameters)[1:]
        model.register_forward_pre_hook(self.before_model)
        model.register_forward_hook(self.after_model, always_call=True)
        body.register_forward_pre_hook(self.before_body, with_kwargs=True)
        body.register_forward_hook(self.after_body)
        POOLING.set(body, self)

    def before_model(self, model: nn.Module, args: Arguments) -> None:
        """Begin."""
        self.is_running, self.mask, self.prefix = True, None, None

    def after_model(self, model: nn.Module, args: Any, output: Any) -> None:
        """End, also after a failed pass."""
        self.is_running, self.mask, self.prefix = False, None, None

    def before_body(self, body: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        """Note the mask, before a prefix makes it longer."""
        if self.is_running:
            self.mask = {**dict(zip(self.argument_names, args, strict=False)), **kwargs}.get("attention_mask")

    def after_body(self, body: nn.Module, args: Arguments, output: Any) -> Any:
        """Put the (B, 1, D) pooled states in the place of the (B, N, D) hidden states, and (B, D) in the pooler's."""
        if not self.is_running:
            return output
        if isinstance(output, tuple):
            return self.pooled(body, output[0])[:, None], *output[1:]
        state = self.pooled(body, output["last_hidden_state"])
        output["last_hidden_state"] = state[:, None]
        if output.get("pooler_output") is not None:
            output["pooler_output"] = state
        return output

    @property
    def reads_prefix(self) -> bool:
        """Whether the head of the model that runs now reads the prefix."""
        return self.is_running and self.pool == "prefix"

    def note_prefix(self, states: Tensor, mask: Tensor) -> None:
        """Note the prefix in (B, P + N, D) last hidden states, if the (B, P) mask says that every document has one."""
        self.prefix = states[:, 0] if bool(mask[:, 0].all()) else None

    def pooled(self, body: nn.Module, states: Tensor) -> Tensor:
        """(B, N, D) -> (B, D).

        Raises:
            AdapterError: there is no prefix to read, or the mask does not say which tokens are padding.
        """
        if self.pool == "prefix":
            if self.prefix is None:
                raise AdapterError(
                    "the head reads the prefix (pool 'prefix'), and in this pass a document has none in front of its "
                    "text; activate an adapter that puts one there"
                )
            return self.prefix
        mask = self.text_mask(states)
        if self.pool == "attention":
            return attended(states, mask, body.get_submodule(ATTENTION)(states))
        return OF_TOKENS[self.pool](states, mask)

    def text_mask(self, states: Tensor) -> Tensor:
        """Return (B, N) bool, True for a token and False for padding."""
        if self.mask is None:
            return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if self.mask.dim() != 2:
            shape = tuple(self.mask.shape)
            raise AdapterError(f"the head pools tokens: expected an attention_mask (batch, tokens), got {shape}")
        return self.mask[:, -states.shape[1] :].to(states.device) != 0


POOLING = ModuleValue[Pooling]("foretoken_pooling")  # on the body of a model whose head reads a pooled state
