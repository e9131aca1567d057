"""Plain float64 forward passes of BERT, Longformer, GPT-2 and Llama: one document, loops over layers, queries, heads.

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
    """One query of one head, and the keys and values that it sees.

    query (K,), keys and values (M', K); ``from_row[j]`` tells whether key j belongs to a row in front of the text,
    ``is_global[j]`` whether it is a global token's, a row's included; ``by_global`` whether the query is one's.
    """

    head: int
    key_head: int
    query: Tensor
    keys: Tensor
    values: Tensor
    from_row: list[bool]
    is_global: list[bool]
    by_global: bool
    scale: float


@dataclass
class Edits:
    """What a method changes, by layer. The defaults change nothing.

    ``rows`` (P, D) stand in front of the text from layer 0 on; ``row_additions[l]`` (P, D) and ``text_additions[l]``
    (N, D) are added before layer l; ``query_updates[l, part]`` (D_in, D_out) are added to the weights of the query
    projection (part 1: Longformer's for its global tokens); ``attend[l]`` replaces the attention of one query of one
    head: it returns its output (K,), and a vector (D,) that is summed over the heads after the output projection;
    ``on_attention[l]`` and ``on_feed_forward[l]`` take (output, input) of the output projection and of the
    feed-forward block, each (M, D), and return the new output, which then enters the residual sum.
    """

    rows: Tensor | None = None
    row_additions: dict[int, Tensor] = field(default_factory=dict)
    text_additions: dict[int, Tensor] = field(default_factory=dict)
    query_updates: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    attend: dict[int, Callable[[Seen], tuple[Tensor, Tensor | float]]] = field(default_factory=dict)
    on_attention: dict[int, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)
    on_feed_forward: dict[int, Callable[[Tensor, Tensor], Tensor]] = field(default_factory=dict)


def plain_attention(seen: Seen) -> tuple[Tensor, float]:
    """softmax(q K^T / sqrt(K)) V of one query."""
    return softmax(seen.keys @ seen.query * seen.scale) @ seen.values, 0.0


def unchanged(output: Tensor, given: Tensor) -> Tensor:
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
        self.num_key_heads = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim = config.hidden_size // self.num_heads

    @property
    def embedding(self) -> Tensor:
        """The (V, D) token embeddings."""
        return self.weights[self.embeddings]

    def __call__(self, ids: Tensor, edits: Edits | None = None, *, global_tokens: tuple[int, ...] = ()) -> Tensor:
        """Token ids (N,), without padding -> last hidden states of the text (N, D)."""
        edits = edits or Edits()
        x = self.embed(ids)
        count = 0
        if edits.rows is not None:
            count = len(edits.rows)
            x = torch.cat([edits.rows, x])
        is_global = self.are_global(count, len(ids), global_tokens)
        for layer in range(self.num_layers):
            rows = x[:count] + edits.row_additions.get(layer, 0.0)
            text = x[count:] + edits.text_additions.get(layer, 0.0)
            x = self.layer(layer, torch.cat([rows, text]), count, is_global, edits)
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
        attended, after = [], []
        for i in range(len(x)):
            query, key, value = projected[is_global[i]]
            visible = [j for j in range(len(x)) if self.sees(layer, i, j, is_global)]
            from_row, key_is_global = [j < count for j in visible], [is_global[j] for j in visible]
            heads = []
            for head in range(self.num_heads):
                shared = head // (self.num_heads // self.num_key_heads)
                seen = Seen(
                    head=head,
                    key_head=shared,
                    query=query[head][i],
                    keys=key[shared][visible],
                    values=value[shared][visible],
                    from_row=from_row,
                    is_global=key_is_global,
                    by_global=is_global[i],
                    scale=self.head_dim**-0.5,
                )
                heads.append(attend(seen))
            attended.append(torch.cat([out for out, _ in heads]))
            after.append(sum((vector for _, vector in heads), torch.zeros_like(x[0])))
        attended = torch.stack(attended)
        output = self.output_projection(layer, attended) + torch.stack(after)
        return edits.on_attention.get(layer, unchanged)(output, attended)

    def project(self, layer: int, part: int, x: Tensor, count: int, edits: Edits) -> tuple[Tensor, ...]:
        """(M, D) -> query (H, M, K), key and value (H_kv, M, K)."""
        query, key, value = self.query_key_value(layer, part, x)
        if (layer, part) in edits.query_updates:
            query = query + x @ edits.query_updates[layer, part]
        query, key, value = (y.unflatten(-1, (-1, self.head_dim)).transpose(0, 1) for y in (query, key, value))
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
