"""The reference against the papers' sums as they are printed: Python's own numbers, token by token, head by head."""

import inspect
import math
import re
from functools import partial
from itertools import product

import pytest
import torch

from foretoken import METHODS
from foretoken.methods import reference

from support.count import ROOT

B, H, N, M, P, K, D, R = 2, 3, 4, 5, 3, 4, 6, 2


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def close(found, by_hand):
    torch.testing.assert_close(found, torch.as_tensor(by_hand, dtype=torch.float64), atol=1e-13, rtol=1e-12)


def places(*sizes):
    return product(*map(range, sizes))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def times(x, matrix):
    return [dot(x, column) for column in zip(*matrix, strict=True)]


def mlp(x, w_1, b_1, w_2):
    return times([math.tanh(a + b) for a, b in zip(times(x, w_1), b_1[0], strict=True)], w_2)


def mixed(weights, values):
    """Return ``sum_j w_j v_j / sum_j w_j``."""
    return [value / sum(weights) for value in times(weights, values)]


def similarity(q, k):
    return math.exp(dot(q, k) / math.sqrt(K))


def phi(x, directions):
    x = [a / K**0.25 for a in x]
    return [math.exp(dot(w, x) - dot(x, x) / 2) / math.sqrt(len(directions)) for w in directions]


def selective(q, k, v, p_k, p_v, alpha=2.5):
    masked = [similarity(q, key) / (1 + math.exp(-alpha * dot(q, key) / math.sqrt(K))) for key in p_k]
    return mixed([*masked, *(similarity(q, key) for key in k)], [*p_v, *v])


def added(*vectors):
    return [sum(parts) for parts in zip(*vectors, strict=True)]


def plain(q, k, v):
    return mixed([similarity(q, key) for key in k], v)


def kernels(kernel, q, k, v, p_k, p_v, alpha=0.3):
    prefix = mixed([kernel(q, key) for key in p_k], p_v)
    return added(plain(q, k, v), [alpha * value for value in prefix])


DIRECTIONS = normal(6, K)
KERNELS = {  # <q, k> of the rbf kernel from the cosine law
    "exponential": similarity,
    "scores": lambda q, k: dot(q, k) / math.sqrt(K),
    "polynomial": lambda q, k: dot(q, k) ** 2 / K,
    "rbf": lambda q, k: math.exp(-(dot(q, q) - 2 * dot(q, k) + dot(k, k)) / (2 * math.sqrt(K))),
    "performer": lambda q, k: dot(phi(q, DIRECTIONS.tolist()), phi(k, DIRECTIONS.tolist())),
}


def by_kernel(name):
    function = partial(reference.performer, directions=DIRECTIONS) if name == "performer" else getattr(reference, name)
    return partial(reference.kernel_propagation, alpha=0.3, kernel=function), partial(kernels, KERNELS[name])


def appended(q, k, v, p_k, p_v):
    return mixed([similarity(q, key) for key in (*k, *p_k)], [*v, *p_v])


# name: the reference, and the loop of one query: lists q (K,), k and v (M, K), p_k and p_v (P, K)
EQUATIONS = {
    "prefix-tuning": (reference.prefix_tuning, appended),
    "eq. 5 and 6": (reference.weighed_attentions, appended),
    "decoupled": (
        partial(reference.decoupled_prefix, gate=0.4),
        lambda q, k, v, p_k, p_v: added(plain(q, k, v), [0.4 * x for x in plain(q, p_k, p_v)]),
    ),
    "selective": (partial(reference.selective_prefix_tuning, alpha=2.5), selective),
    **{name: by_kernel(name) for name in KERNELS},
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_virtual_keys_and_values(equation):
    function, loop = EQUATIONS[equation]
    q, k, v, p_k, p_v = (normal(*shape) for shape in ((B, H, N, K), (B, H, M, K), (B, H, M, K), (H, P, K), (H, P, K)))
    v, p_v = v + 1, p_v - 1
    out = function(q, k, v, p_k, p_v)
    for b, h, i in places(B, H, N):
        expected = loop(*(x.tolist() for x in (q[b, h, i], k[b, h], v[b, h], p_k[h], p_v[h])))
        close(out[b, h, i], expected)


@pytest.mark.parametrize("layer", [0, 1])
def test_prefix_propagation(layer):
    """Eq. 1: every row sees every row; the first P are the prefix, or what the layers made of it, and ``P^(l)``."""
    states, prefix, weights = normal(B, M, D), normal(P, D), [normal(H, D, K, seed=s) / 2 for s in range(3)]
    out = reference.prefix_propagation(states, prefix, layer, *weights)
    for b, h in places(B, H):
        rows, own = states[b].tolist(), prefix.tolist()
        rows = [*own, *rows] if layer == 0 else [*map(added, own, rows), *rows[P:]]
        q, k, v = ([times(row, w[h].tolist()) for row in rows] for w in weights)
        close(out[b, h], [plain(query, k, v) for query in q])


@pytest.mark.parametrize("variant", ["inducer", "extension", "gating", "adaptive"])
def test_inducer_tuning(variant):
    """Eq. 7, first line: a softmax over the text's keys and one more of value ``f(q) + MLP_v(q)``, or MLP_v(q)."""
    q, k, v = normal(B, H, N, K), normal(B, H, M, K), normal(B, H, M, K, seed=1)
    width = K if variant == "adaptive" else D
    maps = [normal(H, K, R), normal(H, 1, R), normal(H, R, width)]
    w_o, b_o, b_2, mlp_k = normal(H, K, D), normal(D), normal(D, seed=1), normal(B, H, N, K, seed=2)
    mlp_k = mlp_k if variant in ("inducer", "gating") else 0 * mlp_k
    if variant == "adaptive":
        out = reference.adaptive_inducer(q, k, v, reference.network(q, *maps))
    else:
        out = reference.inducer_tuning(q, k, v, w_o, b_o, mlp_k, *maps, b_2, gating=variant == "gating")

    def head(b, h, i):
        query, keys, values = q[b, h, i].tolist(), k[b, h].tolist(), v[b, h].tolist()
        if variant != "adaptive":  # in the model's width: what W_o makes of the head
            values = [times(value, w_o[h].tolist()) for value in values]
        f = [0.0] * width if variant == "gating" else plain(query, keys, values)
        own = added(query, mlp_k[b, h, i].tolist()), added(f, mlp(query, *(x[h].tolist() for x in maps)))
        return plain(query, [*keys, own[0]], [*values, own[1]])

    for b, i in places(B, N):
        heads = [head(b, h, i) for h in range(H)]
        found = out[b, :, i] if variant == "adaptive" else out[b, i]
        close(found, heads if variant == "adaptive" else added(*heads, b_o.tolist(), b_2.tolist()))


def test_lambda_for_alpha_is_prefix_tuning():
    """The text has weight 1 in eq. 7 and 1 - lambda in eq. 5: alpha stands for lambda / (1 - lambda)."""
    tensors = [normal(*shape) for shape in ((B, H, N, K), (B, H, M, K), (B, H, M, K), (H, P, K), (H, P, K))]
    share = reference.prefix_share(*tensors[:2], tensors[3])
    odds = reference.kernel_propagation(*tensors, alpha=share / (1 - share))
    close((1 - share) * odds, reference.prefix_tuning(*tensors))


@pytest.mark.parametrize("length", [1, 2, 4])
def test_selective_loss(length):
    """Eq. 7 to 9, pair by pair; without a pair it is 0."""
    keys, values = normal(3, length, D), normal(3, length, D, seed=1)
    total = 0.0
    for p in (*keys.tolist(), *values.tolist()):
        pairs = [(p[i], p[j]) for i in range(length) for j in range(i + 1, length)]
        cosines = [abs(dot(x, y)) / math.sqrt(dot(x, x)) / math.sqrt(dot(y, y)) for x, y in pairs]
        total += sum(cosines) / max(1, len(cosines)) / 2
    close(reference.selective_loss(keys, values), total)


def test_tables_of_tokens():
    """Eq. 6 and 7, row by row: what is added to token x."""
    (a, b, c), embeddings, ids = (
        (normal(4, R), normal(3, R), normal(R * R, D)),
        normal(12, D),
        torch.tensor([[3, 11, 0]]),
    )
    maps, states = (normal(D, R), normal(R), normal(R, D), normal(D)), normal(1, 3, D)
    kronecker = reference.aot_p_tuning(states, reference.aot_kronecker(a, b, c), ids)
    fc = reference.aot_p_tuning(states, reference.aot_fc(embeddings, *maps), ids)
    w_1, b_1, w_2, b_2 = (part.tolist() for part in maps)
    for n, x in enumerate(ids[0].tolist()):
        product_row = [i * j for i in a[x // 3].tolist() for j in b[x % 3].tolist()]
        close(kronecker[0, n], added(states[0, n].tolist(), times(product_row, c.tolist())))
        inner = [z / 2 * (1 + math.erf(z / math.sqrt(2))) for z in added(times(embeddings[x].tolist(), w_1), b_1)]
        close(fc[0, n], added(states[0, n].tolist(), times(inner, w_2), b_2))


def test_maps_and_blocks():
    x, y, down, up, b_1, b_2 = normal(N, D), normal(N, D, seed=1), normal(D, R), normal(R, D), normal(R), normal(D)
    low_rank = reference.lora(y, x, down.T, up.T, scale=0.5)
    adapter = reference.bottleneck_adapter(y, x, down, b_1, up, b_2, scale=2.0)
    for i in range(N):
        inner = times(x[i].tolist(), down.tolist())
        relu = [2 * max(0.0, z) for z in added(inner, b_1.tolist())]
        close(low_rank[i], added(y[i].tolist(), times([z / 2 for z in inner], up.tolist())))
        close(adapter[i], added(y[i].tolist(), times(relu, up.tolist()), [2 * z for z in b_2.tolist()]))


def test_every_method_has_its_equation():
    """``head-only`` and ``full`` add nothing to the model, and a ``stack`` is its members."""
    named = {name.replace("-", "_") for name in METHODS} - {"head_only", "full", "stack"}
    assert named <= set(dict(inspect.getmembers(reference, inspect.isfunction)))


def test_what_comments_call_reference_is_there():
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"# reference\.(\w+)", text)}
    methods = {name.replace("-", "_") for name in METHODS} - {"head_only", "full", "stack"}
    assert methods <= named
    assert named <= set(vars(reference))
