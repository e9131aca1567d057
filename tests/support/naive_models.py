"""Plain float64 forward passes of BERT, Longformer, GPT-2 and Llama: one document, loops over layers and queries.

They read the weights from a state dict of transformers' own model and know nothing of foretoken. What a method changes
comes in as :class:`Edits`. Every operation is differentiable, so that gradients can be compared as well.

Shapes: N text tokens, P rows in front of the text, M = P + N, D model width, H heads, K head width.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from support.naive_functions import gelu, gelu_tanh, layer_norm, rms_norm, rotated, silu, softmax


class Seen(NamedTuple):
    """One query, and the keys and values that it sees.

    query (H, 1, K), keys and values (H, M', K); ``from_row[j]`` tells whether key j belongs to a row in front of the
    text, ``is_global[j]`` whether it is a global token's, a row's included; ``by_global`` whether the query is one's.
    ``project`` is the output projection: (H, n, K) -> (n, D).
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    from_row: list[bool]
    is_global: list[bool]
    by_global: bool
    project: Callable[[Tensor], Tensor]


@dataclass
class Edits:
    """What a method changes, by layer. The defaults change nothing.

    ``on_input[l]`` is given what enters layer l, (M, D), and may put P rows in front of it; ``on_text[l]`` then edits
    the text's part (N, D); ``on_query[l, part]`` takes (output, input) of the query projection (part 1: Longformer's
    for its global tokens); ``attend[l]`` replaces the attention of one query, output projection included: it returns
    (1, D); ``on_attention[l]`` and ``on_feed_forward[l]`` take (output, input) of the blocks, each (M, D), and return
    the new output, which then enters the residual sum.
    """

    on_input: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    on_text: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    on_query: dict[tuple[int, int], Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    attend: dict[int, Callable[[Seen], Tensor]] = field(default_factory=dict)
    on_attention: dict[int, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    on_feed_forward: dict[int, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)


def plain_attention(seen: Seen) -> Tensor:
    """softmax(q K^T / sqrt(K)) V of one query, head by head, after the output projection."""
    heads = zip(seen.query, seen.keys, seen.values, strict=True)
    return seen.project(torch.stack([softmax(k @ q[0] / len(q[0]) ** 0.5)[None] @ v for q, k, v in heads]))


def unchanged(output: Tensor, *_: Tensor) -> Tensor:
    return output


class Model:
    """The loop that all families share. ``weights``: the float64 state dict of transformers' bare model."""

    norm_first = False
    embeddings: str  # the name of the token embeddings

    def __init__(self, config, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.weights = weights
        self.num_layers = config.num_hidden_layers
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // self.num_heads

    @property
    def embedding(self) -> Tensor:
        """The (V, D) token embeddings."""
        return self.weights[self.embeddings]

    def __call__(self, ids: Tensor, edits: Edits | None = None, *, global_tokens: tuple[int, ...] = ()) -> Tensor:
        """Token ids (N,), without padding -> last hidden states of the text (N, D)."""
        edits = edits or Edits()
        x, count = self.embed(ids), 0
        for layer in range(self.num_layers):
            x = edits.on_input.get(layer, unchanged)(x)
            count = len(x) - len(ids)
            x = torch.cat([x[:count], edits.on_text.get(layer, unchanged)(x[count:])])
            x = self.layer(layer, x, count, self.are_global(count, len(ids), global_tokens), edits)
        return self.end(x)[count:]

    def layer(self, layer: int, x: Tensor, count: int, is_global: list[bool], edits: Edits) -> Tensor:
        """Attention and feed-forward block, each with its residual sum and its norm before or after it."""

        def attention(x: Tensor) -> Tensor:
            return self.attention(layer, x, count, is_global, edits)

        def feed_forward(x: Tensor) -> Tensor:
            return edits.on_feed_forward.get(layer, unchanged)(self.feed_forward(layer, x), x)

        for block, name in ((attention, "attention"), (feed_forward, "feed_forward")):
            x = x + block(self.norm(layer, name, x)) if self.norm_first else self.norm(layer, name, x + block(x))
        return x

    def attention(self, layer: int, x: Tensor, count: int, is_global: list[bool], edits: Edits) -> Tensor:
        """(M, D) -> (M, D), output projection included."""
        parts = range(2 if any(is_global) else 1)
        projected = [self.project(layer, part, x, count, edits) for part in parts]
        attend = edits.attend.get(layer, plain_attention)

        def project(heads: Tensor) -> Tensor:
            return self.output_projection(layer, heads.transpose(0, 1).flatten(1))

        output = []
        for i in range(len(x)):
            query, keys, values = projected[is_global[i]]
            visible = [j for j in range(len(x)) if self.sees(layer, i, j, is_global)]
            seen = Seen(
                query[:, i : i + 1],
                keys[:, visible],
                values[:, visible],
                from_row=[j < count for j in visible],
                is_global=[is_global[j] for j in visible],
                by_global=is_global[i],
                project=project,
            )
            output.append(attend(seen))
        return edits.on_attention.get(layer, unchanged)(torch.cat(output), x)

    def project(self, layer: int, part: int, x: Tensor, count: int, edits: Edits) -> tuple[Tensor, ...]:
        """(M, D) -> query, key and value (H, M, K); heads that share a key each have it."""
        query, key, value = self.query_key_value(layer, part, x)
        query = edits.on_query.get((layer, part), unchanged)(query, x)
        query, key, value = (y.unflatten(-1, (-1, self.head_dim)).transpose(0, 1) for y in (query, key, value))
        key, value = (y.repeat_interleave(len(query) // len(y), dim=0) for y in (key, value))
        return self.placed(query, count), self.placed(key, count), value

    def placed(self, vectors: Tensor, count: int) -> Tensor:
        """Apply positions to queries or keys (heads, M, K), in the families that have them there."""
        return vectors

    def linear(self, name: str, x: Tensor) -> Tensor:
        """W x + b, or W x where there is no b."""
        return x @ self.weights[name + ".weight"].T + self.weights.get(name + ".bias", 0.0)

    def layer_norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        return layer_norm(x, self.weights[name + ".weight"], self.weights[name + ".bias"], eps)

    def are_global(self, count: int, length: int, tokens: tuple[int, ...]) -> list[bool]:
        return [False] * (count + length)

    def end(self, x: Tensor) -> Tensor:
        return x


class Bert(Model):
    """Every token sees every token; norms after the residual sums."""

    embeddings = "embeddings.word_embeddings.weight"

    def embed(self, ids: Tensor) -> Tensor:
        positions = self.weights["embeddings.position_embeddings.weight"][self.first_position() :][: len(ids)]
        types = self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self.embedding[ids] + positions + types
        return self.layer_norm("embeddings.LayerNorm", x, self.config.layer_norm_eps)

    def first_position(self) -> int:
        return 0

    def query_key_value(self, layer: int, part: int, x: Tensor) -> list[Tensor]:
        suffix = ("", "_global")[part]
        return [
            self.linear(f"encoder.layer.{layer}.attention.self.{name}{suffix}", x) for name in ("query", "key", "value")
        ]

    def sees(self, layer: int, i: int, j: int, is_global: list[bool]) -> bool:
        return True

    def output_projection(self, layer: int, x: Tensor) -> Tensor:
        return self.linear(f"encoder.layer.{layer}.attention.output.dense", x)

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        inner = gelu(self.linear(f"encoder.layer.{layer}.intermediate.dense", x))
        return self.linear(f"encoder.layer.{layer}.output.dense", inner)

    def norm(self, layer: int, block: str, x: Tensor) -> Tensor:
        name = {"attention": "attention.output.LayerNorm", "feed_forward": "output.LayerNorm"}[block]
        return self.layer_norm(f"encoder.layer.{layer}.{name}", x, self.config.layer_norm_eps)


class Longformer(Bert):
    """A token sees its neighbours in a window, and global tokens; a global one sees all, by projections of its own."""

    def first_position(self) -> int:
        return self.config.pad_token_id + 1

    def are_global(self, count: int, length: int, tokens: tuple[int, ...]) -> list[bool]:
        return [True] * count + [i in tokens for i in range(length)]

    def sees(self, layer: int, i: int, j: int, is_global: list[bool]) -> bool:
        return is_global[i] or is_global[j] or abs(i - j) <= self.config.attention_window[layer] // 2


class Gpt2(Model):
    """Token i sees tokens 0..i; norms before the blocks; rows in front have no position."""

    norm_first = True
    embeddings = "wte.weight"

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding[ids] + self.weights["wpe.weight"][: len(ids)]

    def linear(self, name: str, x: Tensor) -> Tensor:
        """X W + b: GPT-2 holds the transposed matrices."""
        return x @ self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def query_key_value(self, layer: int, part: int, x: Tensor) -> tuple[Tensor, ...]:
        return self.linear(f"h.{layer}.attn.c_attn", x).chunk(3, dim=-1)

    def sees(self, layer: int, i: int, j: int, is_global: list[bool]) -> bool:
        return j <= i

    def output_projection(self, layer: int, x: Tensor) -> Tensor:
        return self.linear(f"h.{layer}.attn.c_proj", x)

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        return self.linear(f"h.{layer}.mlp.c_proj", gelu_tanh(self.linear(f"h.{layer}.mlp.c_fc", x)))

    def norm(self, layer: int, block: str, x: Tensor) -> Tensor:
        name = {"attention": "ln_1", "feed_forward": "ln_2"}[block]
        return self.layer_norm(f"h.{layer}.{name}", x, self.config.layer_norm_epsilon)

    def end(self, x: Tensor) -> Tensor:
        return self.layer_norm("ln_f", x, self.config.layer_norm_epsilon)


class Llama(Model):
    """Token i sees tokens 0..i; rotary positions, 0 for all rows in front; heads share keys and values in groups."""

    norm_first = True
    embeddings = "embed_tokens.weight"

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding[ids]

    def query_key_value(self, layer: int, part: int, x: Tensor) -> list[Tensor]:
        return [self.linear(f"layers.{layer}.self_attn.{name}_proj", x) for name in "qkv"]

    def placed(self, vectors: Tensor, count: int) -> Tensor:
        theta = self.config.rope_parameters["rope_theta"]
        return torch.stack(
            [torch.stack([rotated(x, max(0, i - count), theta) for i, x in enumerate(head)]) for head in vectors]
        )

    def sees(self, layer: int, i: int, j: int, is_global: list[bool]) -> bool:
        return j <= i

    def output_projection(self, layer: int, x: Tensor) -> Tensor:
        return self.linear(f"layers.{layer}.self_attn.o_proj", x)

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        name = f"layers.{layer}.mlp."
        return self.linear(
            name + "down_proj", silu(self.linear(name + "gate_proj", x)) * self.linear(name + "up_proj", x)
        )

    def norm(self, layer: int, block: str, x: Tensor) -> Tensor:
        name = {"attention": "input_layernorm", "feed_forward": "post_attention_layernorm"}[block]
        return rms_norm(x, self.weights[f"layers.{layer}.{name}.weight"], self.config.rms_norm_eps)

    def end(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weights["norm.weight"], self.config.rms_norm_eps)


MODELS = {"bert": Bert, "longformer": Longformer, "gpt2": Gpt2, "llama": Llama}
