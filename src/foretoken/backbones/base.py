"""What a backbone family declares: where the sites are. It knows no method.

Shapes: B batch, N text tokens, P rows in front of the text, D model width, H heads, K head width, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from foretoken.attention import Mask
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.masks import PrefixMask

PORT = "foretoken_port"  # where an attention module finds its branch


class Branch(Protocol):
    """What the adapters at work add to one attention: the tuner hands it to the attention module."""

    @property
    def acts(self) -> bool:
        """Tell whether the attention must do anything else than without adapters in the current pass."""

    @property
    def rests(self) -> bool:
        """Tell whether the model is to compute as transformers made it: its adapters are disabled, or gone."""

    @property
    def has_part(self) -> bool:
        """Tell whether ``attend`` differs from plain attention (masks may have to be extended in any case)."""

    @property
    def rows_in_front(self) -> PrefixMask | None:
        """Return the rows for which the attention must extend its masks itself; None for no such rows."""

    @property
    def rows_here(self) -> int:
        """Return how many of the hidden states, from the front, are rows: they have no position."""

    @property
    def mixed_size(self) -> int | None:
        """Return B where each document names its adapter, so that nothing can be projected once for all; else None."""

    @property
    def needs_keys(self) -> bool:
        """Tell whether some part asks for the keys and values themselves, and for the batch as it was given."""

    @property
    def text_is_frozen(self) -> bool:
        """Tell whether the text that enters this attention depends on nothing that is trained, unlike the rows."""

    def idle(self, module: nn.Module) -> nn.Module | None:
        """Return the frozen module inside the wrappers and hooks of adapters that do not act in the current pass.

        None where something may change what it yields.
        """

    def packed(self, stream: PackedBatch) -> AbstractContextManager[None]:
        """Take note, for a while, that the hidden states are packed."""

    def attend(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, *, scale: float, dropout: float, mask: Mask
    ) -> tuple[Tensor, Tensor | None]:
        """:func:`foretoken.attention.attend` with the adapters' part in it.

        Returns the attention (B, H, N, K), and a (B, N, D) vector for after the output projection or None.
        """

    def deliver(self, vector: Tensor | None) -> None:
        """Take the (B, N, D) vector that is added after this attention's output projection."""

    def redeliver(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the vector that was delivered."""

    def own_weights(self, query: Tensor, key: Tensor, *, scale: float, mask: Mask) -> Tensor:
        """Return the (B, H, N, M) weights of the own keys, which eager attention gives back."""


def port_of(module: nn.Module) -> Branch | None:
    """Return the branch of an attention whether or not it acts in the current pass; None for a model without any."""
    return module.__dict__.get(PORT)


def branch_of(module: nn.Module) -> Branch | None:
    """Return what the adapters add to this attention in the current pass; None when it stays as it is."""
    port = port_of(module)
    return port if port is not None and port.acts else None


def rests(module: nn.Module) -> bool:
    """Tell whether an attention is transformers' own in the current pass, to the last bit."""
    port = port_of(module)
    return port is not None and port.rests


@dataclass(frozen=True)
class Attention:
    """One attention of a layer. Paths are relative to the layer.

    Attributes:
        module: the attention module.
        query: its query projections; where one map yields queries, keys and values, the queries come first.
        output: its output projection.
        has_global: some keys are seen by every query while the others are seen in a window.
        is_rotary: the module is given ``position_embeddings``, cosine and sine, and rotates the halves of each head.
    """

    module: str
    query: tuple[str, ...]
    output: str
    has_global: bool = False
    is_rotary: bool = False


def unchanged(kwargs: dict[str, Any], row_mask: Tensor) -> dict[str, Any]:
    """Leave the inputs of a stack alone: its attention extends the masks itself."""
    return kwargs


def always(body: nn.Module) -> bool:
    """Say yes: modules of our own classes ask their branch whatever the user does."""
    return True


def nothing_wrong(config: Any) -> None:
    """Find no reason; a function, as a lambda could not be pickled with the model."""


@dataclass(frozen=True)
class Stack:
    """A run of layers. Paths of ``layers`` are relative to the body, others to the stack's module or to the layer.

    In a causal stack the rows in front see only each other. They run by themselves before the text, and the text
    sees their keys and values as score columns: no cache, mask or position of the text changes.

    Attributes:
        layers: path of the ModuleList of layers.
        attention: the layers' self-attention.
        feed_forward: the modules whose input enters the layer's feed-forward block and whose output leaves it.
        path: the module that runs the layers; empty for the body itself.
        cross: the layers' attention to the encoder.
        entry: names of the module whose output enters the stack, the first that exists; the last is the embeddings.
            Empty: the rows enter right before the first layer.
        end: the module whose output still carries the rows in front.
        is_causal: token i sees tokens 0..i.
        takes_positions: its module takes ``position_ids``: rows that run by themselves get 0, and the text's are
            counted from the first one that is not padding on where the user gives none.
        heads: config -> (heads, key-value heads, head width), where they differ from the backbone's dimensions.
        extend_inputs: keyword arguments of the stack's module and the rows' (B, P) mask -> arguments that allow for
            the rows.
        extend_layer: the same for a layer's keyword arguments.
    """

    layers: str
    attention: Attention
    feed_forward: tuple[str, str]
    path: str = ""
    cross: Attention | None = None
    entry: tuple[str, ...] = ()
    end: str = ""
    is_causal: bool = False
    takes_positions: bool = False
    heads: Callable[[Any], tuple[int, int, int]] | None = None
    extend_inputs: Callable[[dict[str, Any], Tensor], dict[str, Any]] = unchanged
    extend_layer: Callable[[dict[str, Any], Tensor], dict[str, Any]] = unchanged

    def module(self, body: nn.Module) -> nn.Module:
        """Return the module that runs the layers."""
        return body.get_submodule(self.path)

    def layer_modules(self, body: nn.Module) -> list[nn.Module]:
        """Return the layers in order."""
        return list(body.get_submodule(self.layers).children())

    def entry_modules(self, body: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        """Return the module whose output enters the stack, and the embeddings; None for an entry at the first layer."""
        if not self.entry:
            return None
        named = dict(self.module(body).named_children())
        return next(named[name] for name in self.entry if name in named), named[self.entry[-1]]


@dataclass(frozen=True)
class Backbone:
    """Where the sites of one family are.

    Attributes:
        model_types: the values of ``config.model_type`` that it covers.
        stacks: its stacks, an encoder-decoder's encoder first. A body without a stack's module lacks that stack.
        heads: paths of the modules that a task adds and that are trained and saved, as far as a model has them.
        pooled_heads: model classes (by ending) whose pooler belongs to the head.
        pretrained_heads: model classes (by ending) whose head came with the backbone and stays frozen.
        idle_poolers: model classes (by ending) whose body has a pooler that the head does not read.
        first_token_heads: model classes (by ending) whose head reads the first token's last hidden state alone.
        projections: names of the query and value projections, LoRA's usual targets.
        dimensions: config -> the numbers that methods need.
        cannot_cache: config -> why a key-value cache of transformers' own cannot keep a prefix in front of every text;
            None where it can. Of interest in causal stacks.
        attach_attention: (body, attention modules): makes the modules ask their branch.
        detach_attention: undoes it.
        is_attached: body -> whether the modules still ask, which the user may have undone.
    """

    model_types: tuple[str, ...]
    stacks: tuple[Stack, ...]
    heads: tuple[str, ...]
    pooled_heads: tuple[str, ...]
    projections: tuple[str, ...]
    dimensions: Callable[[Any], Mapping[str, int]]
    attach_attention: Callable[[nn.Module, list[nn.Module]], None]
    detach_attention: Callable[[nn.Module, list[nn.Module]], None]
    cannot_cache: Callable[[Any], str | None] = nothing_wrong
    is_attached: Callable[[nn.Module], bool] = always
    pretrained_heads: tuple[str, ...] = ()
    idle_poolers: tuple[str, ...] = ()
    first_token_heads: tuple[str, ...] = ()

    def stacks_of(self, body: nn.Module) -> list[Stack]:
        """Return the stacks that this body has."""
        return [stack for stack in self.stacks if has_submodule(body, stack.layers)]

    def layer_modules(self, body: nn.Module) -> list[nn.Module]:
        """Return the layers of all stacks in order."""
        return [layer for stack in self.stacks_of(body) for layer in stack.layer_modules(body)]

    def attentions(self, body: nn.Module) -> list[tuple[Stack, Attention, nn.Module]]:
        """Return (stack, declaration, layer) of every attention: self-attentions in order, then cross-attentions."""
        stacks = self.stacks_of(body)
        own = [(stack, stack.attention, layer) for stack in stacks for layer in stack.layer_modules(body)]
        crossing = [stack for stack in stacks if stack.cross is not None and len(stacks) > 1]
        return own + [(s, s.cross, layer) for s in crossing if s.cross for layer in s.layer_modules(body)]

    def attention_modules(self, body: nn.Module) -> list[nn.Module]:
        """Return the attention modules in the same order."""
        return [layer.get_submodule(attention.module) for _, attention, layer in self.attentions(body)]

    def head_names(self, model: nn.Module, body: nn.Module) -> list[str]:
        """Return the names of the new head's modules that this model has."""
        if type(model).__name__.endswith(self.pretrained_heads):
            return []
        names = [name for name in self.heads if has_submodule(model, name)]
        if type(model).__name__.endswith(self.pooled_heads) and getattr(body, "pooler", None) is not None:
            names.append("pooler")
        return names


def has_submodule(module: nn.Module, path: str) -> bool:
    """Tell whether a path leads to a module."""
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True


def text_dimensions(config: Any) -> Mapping[str, int]:
    """Read a config that has transformers' usual names."""
    heads = config.num_attention_heads
    return {
        "hidden_size": config.hidden_size,
        "num_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab_size": config.vocab_size,
    }
