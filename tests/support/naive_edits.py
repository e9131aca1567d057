"""What each method changes in a naive model: its function of ``foretoken.methods.reference``, given its parameters.

``p[layer, role][name]`` are the parameters of one adapter, see :func:`adapted.parameters`. Shapes as in naive_models.
"""

import torch

from foretoken.methods import reference

from support.naive_functions import layer_norm
from support.naive_models import Edits

LAYERS = range(3)


def layers(make):
    """Return make(layer) of every layer."""
    return {layer: make(layer) for layer in LAYERS}


def attending(attend):
    """Return what replaces attentions: ``attend(layer, seen)`` (H, 1, K) is given to the output projection."""
    return layers(lambda layer: lambda seen: seen.project(attend(layer, seen)))


def prefix_propagation(rows):
    """``rows[l]`` (P, D)."""
    return Edits(on_input=layers(lambda layer: lambda x: reference.propagated(x, rows[layer], layer)))


def prompt_tuning(rows):
    """Rows (P, D) in front of layer 0 only."""
    return Edits(on_input={0: lambda x: reference.prompt_tuning(x, rows)})


def text(seen):
    """Return the query, keys and values of one query."""
    return seen.query, seen.keys, seen.values


def virtual(both, seen):
    """(P, 2 H_kv K) keys and values of a layer -> P_k and P_v (H, P, K)."""
    heads, _, width = seen.query.shape
    halves = (half.unflatten(-1, (-1, width)).transpose(0, 1) for half in both.chunk(2, dim=-1))
    return [half.repeat_interleave(heads // len(half), dim=0) for half in halves]


def prefix_tuning(prefixes):
    def attend(layer, seen):
        return reference.prefix_tuning(*text(seen), *virtual(prefixes[layer], seen))

    return Edits(attend=attending(attend))


def selective_prefix_tuning(prefixes, *, alpha):
    def attend(layer, seen):
        return reference.selective_prefix_tuning(*text(seen), *virtual(prefixes[layer], seen), alpha)

    return Edits(attend=attending(attend))


def decoupled_prefix(prefixes, *, key_scale, gates=None):
    """What is trained is P_k / key_scale, and w of the gates tanh(w)."""

    def attend(layer, seen):
        p_k, p_v = virtual(prefixes[layer], seen)
        gate = 1.0 if gates is None else torch.tanh(gates[layer])
        return reference.decoupled_prefix(*text(seen), key_scale * p_k, p_v, gate)

    return Edits(attend=attending(attend))


def network(p, name, q):
    """MLP(q) of every head, in head space."""
    down, up = (f"{name}.{part}" for part in ("down", "up"))
    inner = reference.network(q, p[f"{down}.weight"], p[f"{down}.bias"][:, None], p[f"{up}.weight"])
    return inner + p[f"{up}.bias"][:, None]


def extended(p):
    """W_1, b_1, W_2 and b_2 of eq. 11: the heads' W_2 lie side by side in one (D, H R) matrix."""
    w_1, b_1 = p["value_network.down.weight"], p["value_network.down.bias"][:, None]
    w_2 = p["value_network.up.weight"].T.unflatten(0, (len(w_1), -1))
    return w_1, b_1, w_2, p["value_network.up.bias"]


def output_projection(seen):
    """Return W_o (H, K, D) and b_o of a naive model."""
    heads, _, width = seen.query.shape
    unit = torch.eye(heads * width, dtype=torch.float64).unflatten(0, (heads, width))
    b_o = seen.project(torch.zeros_like(seen.query))[0]
    w_o = seen.project(unit.flatten(0, 1).unflatten(1, (heads, width)).transpose(0, 1)) - b_o
    return w_o.unflatten(0, (heads, width)), b_o


def inducer_tuning(p, *, variant):
    """All four variants, eq. 5-9 and 11."""

    def attend(layer, seen):
        own = p[layer, "attention"]
        if variant == "adaptive":
            mlp_v = network(own, "value_network", seen.query)
            return seen.project(reference.adaptive_inducer(*text(seen), mlp_v))
        mlp_k = network(own, "key_network", seen.query) if variant in ("inducer", "gating") else 0.0
        given = *text(seen), *output_projection(seen), mlp_k, *extended(own)
        return reference.inducer_tuning(*given, gating=variant == "gating")

    return Edits(attend=layers(lambda layer: lambda seen: attend(layer, seen)))


def on_query(p, *, scale=1.0, parts=("query",)):
    """Eq. 10 of inducer-tuning: a low-rank update of each W_q."""

    def updated(own):
        return lambda y, x: reference.lora(y, x, own["down.weight"], own["up.weight"], scale)

    return {(layer, part): updated(p[layer, role]) for layer in LAYERS for part, role in enumerate(parts)}


def ahead_of_time(p, ids, table):
    """``table(parameters of a layer)`` is T; of one document's tokens."""
    return Edits(on_text=layers(lambda layer: lambda x: reference.aot_p_tuning(x, table(p[layer, "layer"]), ids)))


def ahead_of_time_fc(p, ids, embedding):
    def table(own):
        first, second = own["shift.first.weight"].T, own["shift.second.weight"].T
        return reference.aot_fc(embedding, first, own["shift.first.bias"], second, own["shift.second.bias"])

    return ahead_of_time(p, ids, table)


def ahead_of_time_kronecker(p, ids):
    return ahead_of_time(p, ids, lambda own: reference.aot_kronecker(own["shift.a"], own["shift.b"], own["shift.c"]))


def bottleneck(p, y, x, *, scale):
    """The adapter with the norm that its equation leaves out."""
    x = layer_norm(x, p["norm.weight"], p["norm.bias"], 1e-5) if "norm.weight" in p else x
    down, up = p["down.weight"].T, p["up.weight"].T
    return reference.bottleneck_adapter(y, x, down, p["down.bias"], up, p["up.bias"], scale=scale)


def bottleneck_adapter(p, *, variant, scale):
    """Sequential after the attention and the feed-forward block, after one of them only, or beside the latter."""

    def make(role):
        def edit(layer):
            def on_output(output, given):
                return bottleneck(p[layer, role], output, given if variant == "parallel" else output, scale=scale)

            return on_output

        return layers(edit)

    attention = make("output") if variant in ("houlsby", "attention") else {}
    return Edits(on_attention=attention, on_feed_forward={} if variant == "attention" else make("feed_forward"))


KERNELS = {
    "exponential": reference.exponential,
    "linear": reference.scores,
    "polynomial": reference.polynomial,
    "rbf": reference.rbf,
}


def kernel_propagation(rows, *, kernel="exponential", text_kernel="exponential", alpha=None, global_alpha=None):
    """Eq. 7-9 at every query; ``alpha(layer, seen)`` is a number or a tensor.

    Without ``alpha`` the two terms are weighted as in eq. 5, by 1 - lambda and lambda: plain prefix-propagation. With
    ``global_alpha`` a windowed query has one more term: the text's global keys leave the first term for it.
    """

    def attend(layer, seen):
        q, of_row, apart = seen.query, torch.tensor(seen.from_row), torch.zeros(len(seen.from_row), dtype=torch.bool)
        if global_alpha is not None and not seen.by_global:
            apart = torch.tensor(seen.is_global) & ~of_row
        (k, v), (p_k, p_v), (g_k, g_v) = (
            (seen.keys[:, own], seen.values[:, own]) for own in (~of_row & ~apart, of_row, apart)
        )
        if alpha is None:
            return reference.weighed_attentions(q, k, v, p_k, p_v)
        kernels = kernel if callable(kernel) else KERNELS[kernel], KERNELS[text_kernel]
        out = reference.kernel_propagation(q, k, v, p_k, p_v, alpha(layer, seen), *kernels)
        return out + (global_alpha or 0.0) * reference.kernel_attention(q, g_k, g_v, kernels[1])

    edits = prefix_propagation(rows)
    edits.attend = attending(attend)
    return edits
