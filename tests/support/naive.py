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


def layer_norm(module, x):
    """Layer normalisation in float64."""
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + module.eps) * module.weight.double() + module.bias.double()


def heads(x, count):
    """(N, D) -> list of (N, K)."""
    return list(x.chunk(count, dim=-1))


def encoder_layer(layer, x, attended):
    """Finish a BERT-like layer (post-norm) around the heads' outputs ``attended`` (N, D)."""
    output = layer.attention.output
    hidden = layer_norm(output.LayerNorm, linear(output.dense, attended) + x)
    inner = torch.nn.functional.gelu(linear(layer.intermediate.dense, hidden))
    return layer_norm(layer.output.LayerNorm, linear(layer.output.dense, inner) + hidden)


def self_attention(module, count, x, real, *, prefix=None, window=None, is_global=None):
    """BERT's self-attention, or Longformer's when ``window`` (one-sided) is given, for one document (N, D).

    ``prefix``: per head (P_k, P_v). ``is_global``: list of bool; global queries use the ``*_global`` projections and
    see every real token; every token sees the global keys through the ordinary projections.
    """

    def projected(suffix):
        return [heads(linear(getattr(module, name + suffix), x), count) for name in ("query", "key", "value")]

    def local(i, j):
        return real[j] and (window is None or abs(i - j) <= window or is_global[j])

    scale = (x.shape[-1] / count) ** -0.5
    both = [None] * count if prefix is None else prefix
    out = [
        attention(*qkv, local, scale=scale, prefix=both[h])[0] for h, qkv in enumerate(zip(*projected(""), strict=True))
    ]
    if window is not None and any(is_global):
        qkvs = zip(*projected("_global"), strict=True)
        rows = [attention(*qkv, lambda i, j: real[j], scale=scale, prefix=both[h])[0] for h, qkv in enumerate(qkvs)]
        for h in range(count):
            for i, flag in enumerate(is_global):
                if flag:
                    out[h][i] = rows[h][i]
    return torch.cat(out, dim=-1)
