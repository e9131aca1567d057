"""Naive float64 versions of the papers' equations: explicit loops over documents, heads and queries."""

import math

import torch


def softmax_rows(scores):
    """Softmax of a list of numbers, as a list."""
    top = max(scores)
    exps = [math.exp(s - top) for s in scores]
    return [e / sum(exps) for e in exps]


def attention(query, key, value, sees, *, scale, prefix=None, extra=None):
    """Loop over queries of one head.

    query (N, K), key/value (M, K), ``sees(i, j)`` tells whether query i sees key j; ``prefix`` = (P_k, P_v) of (P, K)
    each; ``extra`` (N, X) scores without values. Returns the output (N, K) over the own keys (and the prefix), and the
    extra columns' probabilities (N, X).
    """
    out = torch.zeros(query.shape[0], value.shape[1], dtype=torch.float64)
    columns = 0 if extra is None else extra.shape[1]
    probabilities = torch.zeros(query.shape[0], columns, dtype=torch.float64)
    for i in range(query.shape[0]):
        keys = [(key[j], value[j]) for j in range(key.shape[0]) if sees(i, j)]
        keys += [] if prefix is None else list(zip(*prefix, strict=True))
        scores = [float(query[i] @ k) * scale for k, _ in keys]
        scores += [] if extra is None else extra[i].tolist()
        if not scores:
            continue
        weights = softmax_rows(scores)
        for weight, (_, v) in zip(weights, keys, strict=False):
            out[i] += weight * v
        for x in range(columns):
            probabilities[i, x] = weights[len(keys) + x]
    return out, probabilities


def linear(module, x):
    """W x + b in float64."""
    return x @ module.weight.double().T + module.bias.double()
