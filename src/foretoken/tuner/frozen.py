"""What the frozen model computes for one text: where a prefix may start, and what peft's rows become.

Shapes: P tokens of the text, M keys, D model width, H heads, K head width, W width of an attention's keys (H_kv K).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from foretoken.attention import attend
from foretoken.backbones.base import PORT
from foretoken.errors import AdapterError

if TYPE_CHECKING:
    from foretoken.tuner.wiring import Wiring


@dataclass(frozen=True)
class FrozenStates:
    """What the frozen model computes for a text of P tokens.

    Attributes:
        entering: by the first layer of each stack, the (P, D) rows that enter it.
        attentions: for every attention, (P, 2 W): the keys as its queries see them, and the values.
    """

    entering: dict[int, Tensor]
    attentions: list[Tensor]


class Listener:
    """A branch that changes nothing and remembers the keys and values that an attention sees."""

    acts = True
    has_part = True
    rows_in_front = None
    rows_here = 0
    mixed_size = None

    def __init__(self) -> None:
        self.seen: Tensor | None = None

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float, **masks: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Plain attention; the first call of a pass has the ordinary projections, a second one global tokens' own."""
        if self.seen is None:
            rows = (x[0].transpose(0, 1).flatten(1) for x in (key, value))
            self.seen = torch.cat(list(rows), dim=-1)
        return attend(query, key, value, scale=scale, dropout=dropout, **masks)[0], None

    def deliver(self, vector: Tensor | None) -> None:
        """Take nothing: there is no vector."""

    def own_weights(self, query: Tensor, key: Tensor, *, scale: float, **masks: Any) -> Tensor:
        """Return the (1, H, N, M) weights."""
        one_hot = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
        return attend(query, key, one_hot, scale=scale, engine="reference", **masks)[0]


def frozen_states(wiring: Wiring, text: Tensor) -> FrozenStates:
    """Return what the model computes without any adapter for a text: (P,) token ids, or (P, D) token embeddings.

    An encoder-decoder reads the text in both stacks. Where positions rotate the keys, the text stands at -P..-1, right
    before a text that begins at 0; elsewhere at 0..P-1.

    Raises:
        AdapterError: the model has fewer positions than the text has tokens.
    """
    length, body = text.shape[0], wiring.body
    attentions = wiring.backbone.attention_modules(body)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(resting(body))
        listeners = stack.enter_context(listening(attentions))
        entering = stack.enter_context(noting_entries(wiring))
        try:
            body(**inputs_of(wiring, text))
        except IndexError as error:  # beyond the table of positions
            raise AdapterError(
                f"a prefix of {length} tokens cannot be read as a text by this model: {error}; "
                "choose a smaller num_virtual_tokens"
            ) from error
    seen = [listener.seen for listener in listeners]
    return FrozenStates(
        entering={layer: rows[0, :length] for layer, rows in entering.items()},
        attentions=[rows[:length] for rows in seen if rows is not None],
    )


def inputs_of(wiring: Wiring, text: Tensor) -> dict[str, Tensor]:
    """Return the body's arguments for one text."""
    weight = wiring.body.get_input_embeddings().weight  # type: ignore[operator]
    text = text.to(weight.device)[None]
    name = "input_ids" if text.dim() == 2 else "inputs_embeds"
    given = {name: text if name == "input_ids" else text.to(weight.dtype)}
    if len(wiring.stacks) > 1:
        given |= {f"decoder_{key}": value for key, value in given.items()}
    if wiring.stacks[0].stack.is_rotary:
        given["position_ids"] = torch.arange(-text.shape[1], 0, device=text.device)[None]
    return given


@contextmanager
def resting(body: nn.Module) -> Iterator[None]:
    """Let the model be as without adapters and dropout for a while."""
    modules = list(body.modules())
    trained = [module.training for module in modules]
    layers = [(module, module._disable_adapters) for module in modules if isinstance(module, BaseTunerLayer)]
    try:
        for module in modules:
            module.training = False
        for layer, _ in layers:
            layer._disable_adapters = True
        yield
    finally:
        for module, training in zip(modules, trained, strict=True):
            module.training = training
        for layer, disabled in layers:
            layer._disable_adapters = disabled


@contextmanager
def listening(attentions: list[nn.Module]) -> Iterator[list[Listener]]:
    """Put a listener in the place of every attention's port for a while."""
    ports = [attention.__dict__[PORT] for attention in attentions]
    listeners = [Listener() for _ in attentions]
    try:
        for attention, listener in zip(attentions, listeners, strict=True):
            attention.__dict__[PORT] = listener
        yield listeners
    finally:
        for attention, port in zip(attentions, ports, strict=True):
            attention.__dict__[PORT] = port


@contextmanager
def noting_entries(wiring: Wiring) -> Iterator[dict[int, Tensor]]:
    """Note what enters the first layer of each stack for a while."""
    noted: dict[int, Tensor] = {}
    handles = []
    for first, wired in zip(wiring.dimensions.first_layers, wiring.stacks, strict=True):

        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], first: int = first) -> None:
            noted[first] = (args[0] if args else kwargs["hidden_states"]).detach()

        handles.append(wired.layers[0].register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield noted
    finally:
        for handle in handles:
            handle.remove()


def rotations(wiring: Wiring, position: int) -> list[tuple[Tensor, Tensor]]:
    """Return for every layer cosine and sine (K,) of the rotation to a position, without its scaling.

    They are what transformers hands to its layers, in float32.
    """
    noted: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cosine, sine = (x[0, 0].float() for x in kwargs["position_embeddings"])
        size = (cosine.square() + sine.square()).sqrt()  # some kinds of rotation scale what they rotate
        noted.append((cosine / size, sine / size))

    embedding = wiring.body.get_input_embeddings().weight  # type: ignore[operator]
    layers = [layer for wired in wiring.stacks for layer in wired.layers]
    handles = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad(), resting(wiring.body):
            given = {"input_ids": torch.zeros(1, 1), "position_ids": torch.full((1, 1), position)}
            wiring.body(**{name: ids.long().to(embedding.device) for name, ids in given.items()})
    finally:
        for handle in handles:
            handle.remove()
    return noted


def rotated(keys: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """(P, H, K) keys -> the same, rotated: pairs are (i, i + K / 2), as in all of transformers' rotary families here."""
    cosine, sine = (x.to(keys) for x in rotation)
    first, second = keys.chunk(2, dim=-1)
    return keys * cosine + torch.cat([-second, first], dim=-1) * sine
