"""Identities between the papers' equations: what one of them derives from another must hold of the naive versions."""

import math

import pytest
import torch

from support import naive
from support.naive_edits import KERNELS
from support.naive_functions import gelu
from support.naive_methods import (
    ahead_2,
    ahead_3,
    ahead_4,
    ahead_5,
    ahead_6,
    ahead_7,
    ahead_8,
    attn,
    inducer_5,
    inducer_6,
    inducer_7,
    inducer_7_fraction,
    inducer_7_lambda,
    inducer_8,
    inducer_9,
    inducer_10,
    inducer_11,
    propagation_1,
    propagation_1_input,
    propagation_2,
    propagation_3,
    propagation_5,
    propagation_6,
    propagation_7,
    propagation_8,
    propagation_9,
    selective_4,
    selective_5,
    selective_6,
    selective_7,
    selective_9,
    selective_10,
)

P, N, D, K, R = 3, 5, 8, 4, 2


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-13, rtol=1e-12)


@pytest.fixture
def weights():
    return [normal(D, K, seed=seed) / 2 for seed in (1, 2, 3)]


def projected(p, c, weights):
    """Return the queries of cat(P, C), and keys and values of the text and of the rows."""
    w_q, w_k, w_v = weights
    return torch.cat([p, c]) @ w_q, (c @ w_k, c @ w_v, p @ w_k, p @ w_v)


def test_propagation_rows_are_concatenated_once_and_then_added_to():
    p, c = normal(P, D), normal(N, D)
    first = propagation_1_input(0, p, c)
    close(first, torch.cat([p, c]))
    then = propagation_1_input(1, 2 * p, first)
    close(then, torch.cat([3 * p, c]))


def test_propagation_5_is_1(weights):
    p, c = normal(P, D), normal(N, D)
    queries, parts = projected(p, c, weights)
    whole = propagation_1(propagation_1_input(0, p, c), *weights)
    close(torch.stack([propagation_5(q, *parts) for q in queries]), whole)


def test_propagation_7_with_lambda_for_alpha_is_5(weights):
    """The text's term has weight 1 in eq. 7 and 1 - lambda in eq. 5: alpha stands for lambda / (1 - lambda)."""
    queries, parts = projected(normal(P, D), normal(N, D), weights)
    for q in queries:
        weight = propagation_6(q, parts[0], parts[2])
        odds = propagation_7(q, *parts, alpha=weight / (1 - weight), kernel=propagation_9)
        close((1 - weight) * odds, propagation_5(q, *parts))


def test_propagation_3_is_7_for_every_query(weights):
    p, c = normal(P, D), normal(N, D)
    queries, parts = projected(p, c, weights)
    by_query = [propagation_7(q, *parts, alpha=0.3, kernel=propagation_9) for q in queries]
    close(propagation_3(p, c, *weights, alpha=0.3, kernel=propagation_9), torch.stack(by_query))


def test_propagation_8_with_9_is_attention():
    q, keys, values = normal(N, K), normal(P, K), normal(P, K, seed=9)
    close(torch.stack([propagation_8(x, keys, values, propagation_9) for x in q]), attn(q, keys, values))
    by_numbers, _ = naive.attention(q, keys, values, lambda i, j: True, scale=K**-0.5)
    close(attn(q, keys, values), by_numbers)


@pytest.mark.parametrize("kernel", KERNELS)
def test_propagation_8_key_by_key(kernel):
    """The kernels as numbers: sums over j written out, and <q, k> from the cosine law in the rbf kernel."""
    q, keys, values = normal(K), normal(P, K), normal(P, K, seed=9)
    one = {
        "exponential": lambda k: math.exp(q.dot(k) / math.sqrt(K)),
        "linear": lambda k: q.dot(k) / math.sqrt(K),
        "polynomial": lambda k: q.dot(k) ** 2 / K,
        "rbf": lambda k: math.exp(-(q.dot(q) - 2 * q.dot(k) + k.dot(k)) / (2 * math.sqrt(K))),
    }[kernel]
    total = sum(one(k) for k in keys)
    expected = sum(one(k) / total * v for k, v in zip(keys, values, strict=True))
    close(propagation_8(q, keys, values, KERNELS[kernel]), expected)


def test_propagation_2_is_ahead_3(weights):
    c, p_k, p_v = normal(N, D), normal(P, K), normal(P, K, seed=2)
    query, keys, values = (c @ w for w in weights)
    close(propagation_2(c, p_k, p_v, *weights), ahead_3(query, keys, values, p_k, p_v))


def test_prefix_tuning_is_a_weighted_sum_of_two_attentions(weights):
    """He et al. 2022, eq. 7, with lambda of prefix-propagation's eq. 6."""
    c, p_k, p_v = normal(N, D), normal(P, K), normal(P, K, seed=2)
    query, keys, values = (c @ w for w in weights)
    split = [propagation_5(q, keys, values, p_k, p_v) for q in query]
    close(torch.stack(split), propagation_2(c, p_k, p_v, *weights))


def inducer(i, *, visible=N):
    """Return what the equations of one query need."""
    q, keys, values = normal(N, K)[i], normal(N, K, seed=1)[:visible], normal(N, K, seed=2)[:visible]
    mlp_k, mlp_v = normal(K, seed=3), normal(K, seed=4)
    (f,) = attn(q[None], keys, values)
    return q, keys, values, f, inducer_5(q, mlp_k), mlp_v


@pytest.mark.parametrize("i", range(N))
def test_inducer_7_is_8(i):
    q, keys, values, f, p_k, mlp_v = inducer(i)
    p_v, weight = inducer_6(f, mlp_v), inducer_7_lambda(q, p_k, keys)
    close(inducer_7(weight, p_v, f), inducer_7_fraction(q, p_k, p_v, keys, values))
    close(inducer_8(weight, mlp_v, f), inducer_7_fraction(q, p_k, p_v, keys, values))


def test_inducer_weight_depends_on_visible_keys_only():
    q, keys, _, _, p_k, _ = inducer(2, visible=3)
    full = torch.cat([q @ p_k[None].T, q @ keys.T]) / K**0.5
    close(inducer_7_lambda(q, p_k, keys), full.softmax(-1)[0])


def test_inducer_9_summed_over_heads_is_the_output_projection():
    heads, w_o = [normal(N, K, seed=h) for h in range(2)], normal(2 * K, D)
    parts = [inducer_9(f, block) for f, block in zip(heads, w_o.split(K), strict=True)]
    close(sum(parts), torch.cat(heads, dim=-1) @ w_o)


def test_inducer_value_in_head_space_is_an_extended_one():
    """MLP_v before W_o is the extended MLP_v whose last matrix is its own times the head's block of W_o."""
    q, _, _, f, p_k, _ = inducer(0)
    w1, b1, w2, w_o = normal(K, R), normal(R), normal(R, K), normal(K, D)
    weight = inducer_7_lambda(q, p_k, normal(N, K, seed=1))
    inside = inducer_9(inducer_8(weight, inducer_11(q, w1, b1, w2), f), w_o)
    close(inside, inducer_9(f, w_o) + weight * inducer_11(q, w1, b1, w2 @ w_o))


def test_inducer_10_is_a_second_path(weights):
    b, a, x = normal(D, R), normal(R, K), normal(N, D)
    close(x @ inducer_10(weights[0], b, a), x @ weights[0] + (x @ b) @ a)


def test_selective_6_is_a_softmax_with_a_bias():
    q, p_k, keys = normal(K), 3 * normal(P, K), normal(N, K)
    prefix, text = selective_4(q, p_k), selective_4(q, keys)
    weights = torch.cat(selective_6(prefix, text, 2.5))
    close(weights.sum(), torch.ones((), dtype=torch.float64))
    bias = torch.nn.functional.logsigmoid(2.5 * prefix)
    close(weights, torch.cat([prefix + bias, text]).softmax(-1))


def test_selective_mask_between_half_and_hard():
    scores = torch.tensor([-0.4, 0.3, 2.0], dtype=torch.float64)
    close(selective_5(scores, 0.0), torch.full_like(scores, 0.5))
    torch.testing.assert_close(selective_5(scores, 1e3), (scores > 0).double())
    masked, _ = selective_6(scores, torch.zeros(1, dtype=torch.float64), 1e3)
    assert float(masked[0]) < 1e-100


def test_selective_loss_by_matrices():
    keys, values = [normal(P, D, seed=s) for s in (0, 1)], [normal(P, D, seed=s) for s in (2, 3)]
    total = 0
    for p in keys + values:
        unit = torch.nn.functional.normalize(p, dim=-1)
        total = total + (unit @ unit.T).abs().triu(1).sum() / (P * (P - 1) / 2)
    close(selective_9(keys, values), total / 2)
    close(selective_10(torch.tensor(1.5).double(), 0.1, selective_9(keys, values)), 1.5 + 0.05 * total)


def test_selective_loss_at_its_ends():
    close(selective_7(torch.eye(P).double()), torch.zeros(()).double())
    close(selective_7(torch.outer(torch.tensor([1.0, -2.0, 5.0]), torch.ones(D)).double()), torch.ones(()).double())
    assert float(selective_7(normal(1, D))) == 0.0


def test_ahead_4_is_3():
    query, keys, values = normal(N, K), normal(N, K, seed=1), normal(N, K, seed=2)
    p_k, p_v = normal(P, K), normal(P, K, seed=1)
    close(ahead_4(query, keys, values, p_k, p_v), ahead_3(query, keys, values, p_k, p_v))


def test_ahead_2_is_the_first_input_of_prefix_propagation():
    close(ahead_2(normal(P, D), normal(N, D)), propagation_1_input(0, normal(P, D), normal(N, D)))


def test_ahead_6_is_a_row_of_the_kronecker_product():
    a, b, c = normal(4, R), normal(3, R), normal(R * R, D)
    close(torch.stack([ahead_6(a, b, c, x) for x in range(12)]), torch.kron(a, b) @ c)


def test_ahead_7_row_by_row():
    e, w1, b1, w2, b2 = normal(N, D), normal(D, R), normal(R), normal(R, D), normal(D)
    whole = ahead_7(e, w1, b1, w2, b2, torch.nn.functional.gelu)
    close(torch.stack([ahead_7(row, w1, b1, w2, b2, gelu) for row in e]), whole)


def test_ahead_8_is_attention_of_5(weights):
    hidden, table, ids = normal(N, D), normal(20, D), torch.tensor([3, 3, 0, 19, 7])
    shifted = ahead_5(hidden, table, ids)
    close(ahead_8(hidden, table[ids], *weights), attn(*(shifted @ w for w in weights)))
