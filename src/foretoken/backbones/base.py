"""What a backbone family declares: where the sites are. It knows no method.

Shapes: B batch, N text tokens, P prefix length, D model width, H heads, K head width, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig

from foretoken.attention import AttentionCall, LinearMap
from foretoken.attention.packed import PackedBatch
from foretoken.backbones.masks import PrefixMask
from foretoken.backbones.module_value import Keywords, ModuleValue
from foretoken.backbones.pooling import ATTENTION


@dataclass(frozen=True)
class PassFacts:
    """What an attention has to know of the adapters and what stays as it is while a pass goes through it.

    The tuner makes them once for each layer and pass; an attention asks once, at its beginning, and hands them on.

    Attributes:
        rests: the model computes exactly as transformers made it: its adapters are disabled, or removed.
        has_part: ``attend`` differs from plain attention.
        prefix_mask: the prefix for which the attention must extend its masks itself; None where there is none.
        prefix_length: how many of the hidden states, from the front, are the prefix, which has no position.
        partial_prefix: the (B, P) mask of a prefix that some documents have a part of, or nothing; None where all have
            all of it.
        mixed_size: B where each document names its adapter, so that nothing can be projected once for all; else None.
        is_uniform: what the adapters do is the same for every document of the batch.
        may_pack: the batch may be packed.
        needs_keys: an adapter needs the keys and values themselves, and the batch as it was given.
        needs_documents: documents have score columns, prefixes or edits of their own, and are computed padded here.
    """

    rests: bool = False
    has_part: bool = False
    prefix_mask: PrefixMask | None = None
    prefix_length: int = 0
    partial_prefix: Tensor | None = None
    mixed_size: int | None = None
    is_uniform: bool = True
    may_pack: bool = True
    needs_keys: bool = False
    needs_documents: bool = False

    @property
    def acts(self) -> bool:
        """Whether the attention must do anything else than without adapters."""
        return self.has_part or self.prefix_mask is not None


# The seam. M methods and N families meet here, and cost M + N files instead of M x N: a family's attention computes
# queries, keys, values and its mask as transformers does, packs them into an AttentionCall, and hands it to whatever
# implements this protocol. What comes back is the attention, and perhaps a vector for behind the output projection,
# which belongs to transformers' own module: `deliver` keeps it until a hook of that module adds it.
class AttentionAdapter(Protocol):
    """The adapters of one attention module, as the module knows them; the tuner puts one on each."""

    @property
    def facts(self) -> PassFacts:
        """What stays as it is during the pass under way."""

    # no fact: the prefix enters during the pass, and what the text depends on is seen only then
    @property
    def text_is_frozen(self) -> bool:
        """Whether the text that enters depends on nothing that is trained, unlike the prefix: known as they enter."""

    def linear_map(self, module: nn.Module) -> LinearMap | None:
        """Return the map that a module is with the adapters at work on it in the current pass.

        None where it is none, or not the same for all documents.
        """

    def packed(self, stream: PackedBatch) -> AbstractContextManager[None]:
        """Enter a context in which the hidden states are packed."""

    def document(self, number: int) -> AbstractContextManager[None]:
        """Enter a context in which one document of the batch is computed by itself."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        """:func:`foretoken.attention.attend` with the adapters' part in it.

        Returns the attention (B, H, N, K), and a (B, N, D) vector to add after the output projection or None.
        """

    def deliver(self, vector: Tensor | None) -> None:
        """Take the (B, N, D) vector that is added after this attention's output projection."""

    def redeliver(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the vector that was delivered."""

    def own_weights(self, call: AttentionCall) -> Tensor:
        """Return the (B, H, N, M) weights of the attention's own keys, which eager attention returns."""


ADAPTER = ModuleValue[AttentionAdapter]("foretoken_adapter")
NO_ADAPTER = PassFacts()  # of an attention without one, as ``speed_up`` leaves it
# what answers ``linear_map`` for an attention without an adapter of ours, whose projections may carry LoRA of peft's
LINEAR_MAP = ModuleValue[Callable[[nn.Module], "LinearMap | None"]]("foretoken_linear_map")


def facts_of(module: nn.Module) -> PassFacts:
    """Return what an attention has to know of its adapters."""
    adapter = ADAPTER.get(module)
    return NO_ADAPTER if adapter is None else adapter.facts


def adapter_of(module: nn.Module) -> AttentionAdapter | None:
    """Return an attention's adapter if it acts in the current pass; ``ADAPTER.get`` returns it in any case."""
    adapter = ADAPTER.get(module)
    return adapter if adapter is not None and adapter.facts.acts else None


def attended(adapter: AttentionAdapter | None, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
    """Return the attention (B, H, N, K), and a (B, N, D) vector for after the output projection or None."""
    return (call.attend()[0], None) if adapter is None else adapter.attend(call)


def attended_padded(
    adapter: AttentionAdapter, call: AttentionCall, *, weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return the attention of padded documents as (B, N, D), and their own keys' weights where these are asked."""
    out, after = adapter.attend(call)
    adapter.deliver(after)
    return out.transpose(1, 2).flatten(2), adapter.own_weights(call) if weights else None


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return (B, N, H K) as (B, H, N, K)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@dataclass(frozen=True)
class Attention:
    """One attention of a layer. Paths are relative to the layer.

    Attributes:
        module: the attention module.
        query: its query projections; where one map yields queries, keys and values, the queries come first.
        output: its output projection.
        has_global: some keys are seen by every query while the others are seen in a window.
        is_block_sparse: queries see some blocks of keys.
        is_rotary: the module is given ``position_embeddings``, cosine and sine, and rotates the halves of each head.
    """

    module: str
    query: tuple[str, ...]
    output: str
    has_global: bool = False
    is_block_sparse: bool = False
    is_rotary: bool = False


def unchanged(kwargs: Keywords, prefix_mask: Tensor) -> Keywords:
    """Leave the inputs of a stack alone: its attention extends the masks itself."""
    return kwargs


def alone(hidden: Tensor) -> object:
    """Return the hidden states, as a layer that returns nothing else."""
    return hidden


def in_tuple(hidden: Tensor) -> object:
    """Return the hidden states as a layer does that may return attention maps beside them."""
    return (hidden,)


def always(body: nn.Module) -> bool:
    """Return True: modules of our own classes ask their adapter whatever the user does."""
    return True


def nothing_wrong(config: PreTrainedConfig) -> None:
    """Return None; a function, as a lambda could not be pickled with the model."""


def no_offset(config: PreTrainedConfig) -> int:
    """Return 0: the first token has the first position of the table."""
    return 0


def as_it_is(model: Any) -> None:
    """Leave the model alone: its class hands its head whatever the body yields first."""


def no_hooks(model: nn.Module, body: nn.Module) -> list[RemovableHandle]:
    """Return nothing: what every family's head reads has been noted."""
    return []


def offset_after_padding(config: PreTrainedConfig) -> int:
    """Return how many positions stand before the first token's: it has number ``pad_token_id + 1``."""
    return (config.pad_token_id or 0) + 1


@dataclass(frozen=True)
class Stack:
    """A run of layers. Paths of ``layers`` are relative to the body, others to the stack's module or to the layer.

    In a causal stack the prefix sees only itself. It runs by itself before the text, and the text sees its keys and
    values as score columns: no cache, mask or position of the text changes.

    Attributes:
        layers: path of the ModuleList of layers.
        attention: the layers' self-attention.
        feed_forward: the modules whose input enters the layer's feed-forward block and whose output leaves it.
        path: the module that runs the layers; empty for the body itself.
        cross: the layers' attention to the encoder.
        entry: names of the module whose output enters the stack, the first that exists; the last is the embeddings.
            Empty: the prefix enters right before the first layer.
        end: the module whose output still carries the prefix.
        is_causal: token i sees tokens 0..i.
        takes_positions: its module takes ``position_ids``: a prefix that runs by itself gets 0, and the text's are
            counted from the first one that is not padding on where the user gives none.
        heads: config -> (heads, key-value heads, head width), where they differ from the backbone's dimensions.
        extend_inputs: keyword arguments of the stack's module and the prefix's (B, P) mask -> arguments that allow for
            the prefix.
        extend_layer: the same for a layer's keyword arguments.
        layer_output: what a layer returns, made of the hidden states that leave it; None where layers cannot be left
            out, as others depend on more than that.
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
    heads: Callable[[PreTrainedConfig], tuple[int, int, int]] | None = None
    extend_inputs: Callable[[Keywords, Tensor], Keywords] = unchanged
    extend_layer: Callable[[Keywords, Tensor], Keywords] = unchanged
    layer_output: Callable[[Tensor], object] | None = None

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
        projections: names of the query and value projections in turn, LoRA's usual targets; one that yields both.
        dimensions: config -> the numbers that methods need.
        cannot_cache: config -> why a key-value cache of transformers' own cannot keep a prefix in front of every text;
            None where it can. Of interest in causal stacks.
        position_offset: config -> how many rows of the position table stand before that of the first token.
        first_token_is_global: the encoder is told its global tokens with the inputs, and the first token is to be one.
        segments_are_tokens: token types are looked up in the table of the tokens.
        packs_padded_batches: a batch with padding runs without it, whatever the head reads.
        read_one_state: (model) lets a class that pools tokens or logits hand its head one state as it is.
        note_head: (model, body) -> handles of further hooks that note what a model's head reads.
        attach_attention: (body, attention modules): makes the modules ask their adapter.
        detach_attention: undoes it.
        is_attached: body -> whether the modules still ask, which the user may have undone.
    """

    model_types: tuple[str, ...]
    stacks: tuple[Stack, ...]
    heads: tuple[str, ...]
    pooled_heads: tuple[str, ...]
    projections: tuple[str, ...]
    dimensions: Callable[[PreTrainedConfig], Mapping[str, int]]
    attach_attention: Callable[[nn.Module, list[nn.Module]], None]
    detach_attention: Callable[[nn.Module, list[nn.Module]], None]
    cannot_cache: Callable[[PreTrainedConfig], str | None] = nothing_wrong
    is_attached: Callable[[nn.Module], bool] = always
    pretrained_heads: tuple[str, ...] = ()
    idle_poolers: tuple[str, ...] = ()
    first_token_heads: tuple[str, ...] = ()
    position_offset: Callable[[PreTrainedConfig], int] = no_offset
    first_token_is_global: bool = False
    segments_are_tokens: bool = False
    packs_padded_batches: bool = False
    read_one_state: Callable[[Any], None] = as_it_is
    note_head: Callable[[nn.Module, nn.Module], list[RemovableHandle]] = no_hooks

    @property
    def is_fused(self) -> bool:
        """Whether one map yields queries, keys and values."""
        return len(self.projections) == 1

    @property
    def packs(self) -> bool:
        """Whether batches can run without their padding."""
        return self.packs_padded_batches or bool(self.first_token_heads)

    def values_of(self, attention: Attention) -> tuple[str, ...]:
        """Return the paths of an attention's value projections, by those of its queries."""
        value_of = dict(zip(self.projections[::2], self.projections[1::2], strict=False))
        paths = [path.rpartition(".") for path in attention.query]
        return tuple(f"{before}{dot}{value_of.get(name, name)}" for before, dot, name in paths)

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
        names = [name for name in self.heads if has_parameters(model, name)]
        if type(model).__name__.endswith(self.pooled_heads) and has_parameters(body, "pooler"):
            names.append("pooler")
        return [*names, ATTENTION] if has_submodule(body, ATTENTION) else names


def has_submodule(module: nn.Module, path: str) -> bool:
    """Tell whether a path leads to a module."""
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True


def has_parameters(module: nn.Module, path: str) -> bool:
    """Tell whether a path leads to a module with parameters: what stands in the place of a replaced head has none."""
    return has_submodule(module, path) and next(module.get_submodule(path).parameters(), None) is not None


def text_dimensions(config: PreTrainedConfig) -> Mapping[str, int]:
    """Read a config that has transformers' usual names."""
    heads = config.num_attention_heads
    return {
        "hidden_size": config.hidden_size,
        "num_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab_size": config.vocab_size,
    }
