"""What each method changes in a naive model, put together from the numbered equations and an adapter's parameters.

``p[layer, role][name]`` are the parameters of one adapter, see :func:`adapted.parameters`. Shapes as in naive_models.
"""

import torch

from support.naive_functions import gelu, softmax
from support.naive_methods import (
    ahead_3,
    ahead_6,
    ahead_7,
    attn,
    inducer_5,
    inducer_7_lambda,
    inducer_8,
    inducer_11,
    propagation_5,
    propagation_7,
    propagation_8,
    propagation_9,
    selective_4,
    selective_6,
)
from support.naive_models import Edits, plain_attention

LAYERS = range(3)


def layers(make):
    """Return make(layer) of every layer."""
    return {layer: make(layer) for layer in LAYERS}


def prefix_propagation(rows):
    """Li et al. 2023, eq. 1: ``rows[l]`` (P, D)."""
    return Edits(rows=rows[0], row_additions={layer: rows[layer] for layer in LAYERS if layer > 0})


def prompt_tuning(rows):
    """AoT eq. 2: rows in front of layer 0 only."""
    return Edits(rows=rows)


def head_columns(both, seen):
    """(P, 2 H_kv K) keys and values of a layer -> P_k and P_v (P, K) of the head's own group."""
    keys, values = both.chunk(2, dim=-1)
    own = slice(seen.key_head * len(seen.query), (seen.key_head + 1) * len(seen.query))
    return keys[:, own], values[:, own]


def prefix_tuning(prefixes):
    """Prefix-propagation eq. 2, SPT eq. 3, AoT eq. 3: the prefix before the keys and values that a query sees."""

    def make(layer):
        def attend(seen):
            p_k, p_v = head_columns(prefixes[layer], seen)
            (out,) = ahead_3(seen.query[None], seen.keys, seen.values, p_k, p_v)
            return out, 0.0

        return attend

    return Edits(attend=layers(make))


def selective_prefix_tuning(prefixes, *, alpha):
    """SPT eq. 4-6 in place of the softmax of eq. 3."""

    def make(layer):
        def attend(seen):
            p_k, p_v = head_columns(prefixes[layer], seen)
            scores = selective_4(seen.query, p_k), selective_4(seen.query, seen.keys)
            prefix, text = selective_6(*scores, alpha)
            return prefix @ p_v + text @ seen.values, 0.0

        return attend

    return Edits(attend=layers(make))


def decoupled_prefix(prefixes, *, key_scale, gates=None):
    """f(q) + g sum_x p_x P_v,x with p the softmax of q P_k over the prefix alone, g = tanh(w) per head or 1."""

    def make(layer):
        def attend(seen):
            p_k, p_v = head_columns(prefixes[layer], seen)
            f, _ = plain_attention(seen)
            own = softmax(torch.stack([key_scale * key @ seen.query for key in p_k]) * seen.scale)
            gate = 1.0 if gates is None else torch.tanh(gates[layer][seen.head].squeeze())
            return f + gate * sum(weight * value for weight, value in zip(own, p_v, strict=True)), 0.0

        return attend

    return Edits(attend=layers(make))


def network(p, name, head, q):
    """tanh(q A_h + a_h) B_h + b_h of one head, all in head space."""
    inner = inducer_11(q, p[f"{name}.down.weight"][head], p[f"{name}.down.bias"][head], p[f"{name}.up.weight"][head])
    return inner + p[f"{name}.up.bias"][head]


def extended(p, head, q):
    """Eq. 11 of one head: B_h are the head's columns of the (D, H R) matrix."""
    w1, b1 = p["value_network.down.weight"][head], p["value_network.down.bias"][head]
    rank = len(b1)
    return inducer_11(q, w1, b1, p["value_network.up.weight"][:, head * rank : (head + 1) * rank].T)


def inducer_tuning(p, *, variant):
    """Chen et al. 2022, section 6.2: eq. 5-8 and 11; eq. 9 is the output projection of the naive model."""

    def make(layer):
        own = p[layer, "attention"]

        def attend(seen):
            q, head = seen.query, seen.head
            mlp_k = network(own, "key_network", head, q) if variant in ("inducer", "gating") else torch.zeros_like(q)
            weight = inducer_7_lambda(q, inducer_5(q, mlp_k), seen.keys)
            (f,) = attn(q[None], seen.keys, seen.values)
            if variant == "adaptive":
                return inducer_8(weight, network(own, "value_network", head, q), f), 0.0
            f = (1 - weight) * f if variant == "gating" else f
            return f, weight * extended(own, head, q)

        return attend

    def shared_bias(layer):
        return lambda output, given: output + p[layer, "attention"]["value_network.up.bias"]

    return Edits(attend=layers(make), on_attention={} if variant == "adaptive" else layers(shared_bias))


def query_updates(p, *, scale=1.0, parts=("query",)):
    """Chen et al. 2022, eq. 10: what is added to each W_q, as the matrix that multiplies from the right."""
    found = {}
    for layer in LAYERS:
        for part, role in enumerate(parts):
            own = p[layer, role]
            found[layer, part] = scale * own["down.weight"].T @ own["up.weight"].T
    return found


def ahead_of_time_fc(p, ids, embedding):
    """AoT eq. 5 and 7, of one document's tokens."""

    def make(layer):
        own = p[layer, "layer"]
        names = ("shift.first.weight", "shift.first.bias", "shift.second.weight", "shift.second.bias")
        w1, b1, w2, b2 = (own[name] for name in names)
        return torch.stack([ahead_7(embedding[x], w1.T, b1, w2.T, b2, gelu) for x in ids.tolist()])

    return Edits(text_additions=layers(make))


def ahead_of_time_kronecker(p, ids):
    """AoT eq. 5 and 6, of one document's tokens."""

    def make(layer):
        own = p[layer, "layer"]
        return torch.stack([ahead_6(own["shift.a"], own["shift.b"], own["shift.c"], x) for x in ids.tolist()])

    return Edits(text_additions=layers(make))


def bottleneck(p, x, *, scale):
    """Chen et al. 2022, eq. 1, with the biases and the norm that it leaves out: the part beside h."""
    if "norm.weight" in p:
        x = torch.stack([normed(row, p["norm.weight"], p["norm.bias"]) for row in x])
    inner = torch.relu(x @ p["down.weight"].T + p["down.bias"])
    return scale * (inner @ p["up.weight"].T + p["up.bias"])


def normed(row, weight, bias, eps=1e-5):
    """Layer norm of one vector."""
    middle = sum(row) / len(row)
    spread = sum((value - middle) ** 2 for value in row) / len(row)
    return (row - middle) / (spread + eps) ** 0.5 * weight + bias


def bottleneck_adapter(p, *, variant, scale):
    """Sequential after the attention and the feed-forward block, after one of them only, or beside the latter."""

    def make(role):
        def edit(layer):
            def on_output(output, given):
                return output + bottleneck(p[layer, role], given if variant == "parallel" else output, scale=scale)

            return on_output

        return layers(edit)

    attention = make("output") if variant in ("houlsby", "attention") else {}
    return Edits(on_attention=attention, on_feed_forward={} if variant == "attention" else make("feed_forward"))


KERNELS = {  # of one query and each key
    "exponential": propagation_9,
    "linear": lambda q, keys: keys @ q * len(q) ** -0.5,
    "polynomial": lambda q, keys: (keys @ q * len(q) ** -0.5) ** 2,
    "rbf": lambda q, keys: torch.exp(-((q - keys) ** 2).sum(-1) * len(q) ** -0.5 / 2),
}


def kernel_propagation(rows, *, kernel="exponential", text_kernel="exponential", alpha=None, global_alpha=None):
    """Li et al. 2023, eq. 7-9, at every query; ``alpha(layer, seen)`` is a number or a tensor.

    Without ``alpha`` the two terms are weighted as in eq. 5, by 1 - lambda and lambda: plain prefix-propagation. With
    ``global_alpha`` a windowed query has one more term: the text's global keys leave the first term for it.
    """

    def make(layer):
        def attend(seen):
            of_row, apart = torch.tensor(seen.from_row), torch.zeros(len(seen.keys), dtype=torch.bool)
            if global_alpha is not None and not seen.by_global:
                apart = torch.tensor(seen.is_global) & ~of_row
            own = ~of_row & ~apart
            parts = seen.keys[own], seen.values[own], seen.keys[of_row], seen.values[of_row]
            if alpha is None:
                return as_in_the_softmax(seen.query, *parts), 0.0
            own = kernel if callable(kernel) else KERNELS[kernel]
            kernels = {"kernel": own, "text_kernel": KERNELS[text_kernel]}
            out = propagation_7(seen.query, *parts, alpha=alpha(layer, seen), **kernels)
            if apart.any():
                out = out + global_alpha * propagation_8(
                    seen.query, seen.keys[apart], seen.values[apart], KERNELS[text_kernel]
                )
            return out, 0.0

        return attend

    edits = prefix_propagation(rows)
    edits.attend = layers(make)
    return edits


def as_in_the_softmax(query, keys, values, row_keys, row_values):
    """Eq. 5; in a causal model a row sees no text, and lambda is 1."""
    if len(keys):
        return propagation_5(query, keys, values, row_keys, row_values)
    return propagation_8(query, row_keys, row_values, propagation_9)
