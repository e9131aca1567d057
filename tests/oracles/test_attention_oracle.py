"""The attention contract against a loop over queries, against transformers, and by numerical differentiation."""

import pytest
import torch
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from foretoken.attention import DenseMask, ExtraColumns, Window, attend, engines
from foretoken.backbones.longformer.attention import GlobalTokens, WindowedSelfAttention
from foretoken.errors import ConfigError

from support import tiny
from support.naive_functions import softmax

B, H, N, K, X = 2, 2, 11, 4, 3


def tensors(heads_kv=H, *, extra=True, queries=N):
    g = torch.Generator().manual_seed(5)

    def make(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return (
        make(B, H, queries, K),
        make(B, heads_kv, N, K),
        make(B, heads_kv, N, K),
        make(B, H, queries, X) if extra else None,
    )


def window(one_sided, globals_, lengths, size=N):
    """Build a Window from lists of positions per document, and the rule it stands for."""
    real = torch.tensor([[i < length for i in range(size)] for length in lengths])
    is_global = torch.tensor([[i in positions for i in range(size)] for positions in globals_])
    found = GlobalTokens().window(is_global, ~real, one_sided)

    def sees(b):
        return lambda i, j: bool(real[b, j]) and (abs(i - j) <= one_sided or bool(is_global[b, j]))

    return found, sees, real


def naive_attention(query, key, value, sees, *, scale, prefix=None, extra=None):
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
        weights = softmax(torch.tensor(scores, dtype=torch.float64)).tolist()
        for weight, (_, v) in zip(weights, keys, strict=False):
            out[i] += weight * v
        for x in range(columns):
            probabilities[i, x] = weights[len(keys) + x]
    return out, probabilities


def by_loops(q, k, v, extra, sees):
    groups = q.shape[1] // k.shape[1]
    pairs = [
        [
            naive_attention(
                q[b, h],
                k[b, h // groups],
                v[b, h // groups],
                sees(b),
                scale=0.5,
                extra=None if extra is None else extra[b, h],
            )
            for h in range(q.shape[1])
        ]
        for b in range(q.shape[0])
    ]
    return tuple(torch.stack([torch.stack([pair[i] for pair in row]) for row in pairs]) for i in (0, 1))


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("case", ["plain", "masked", "causal", "grouped", "no columns"])
def test_dense_engines_equal_the_loop(engine, case):
    q, k, v, extra = tensors(heads_kv=1 if case == "grouped" else H, extra=case != "no columns")
    real = torch.tensor([[True] * N, [True] * 6 + [False] * (N - 6)])
    rules = {"masked": lambda b: lambda i, j: bool(real[b, j]), "causal": lambda b: lambda i, j: j <= i}
    mask = real[:, None, None] if case == "masked" else None
    seen = DenseMask(mask, is_causal=case == "causal")
    out, p_extra = attend(q, k, v, scale=0.5, mask=seen, columns=ExtraColumns(extra), engine=engine)
    expected, expected_extra = by_loops(q, k, v, extra, rules.get(case, lambda b: lambda i, j: True))
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    if extra is None:
        assert p_extra is None
    else:
        torch.testing.assert_close(p_extra, expected_extra, atol=1e-10, rtol=0)


@pytest.mark.parametrize("engine", engines(Window))
@pytest.mark.parametrize(
    ("one_sided", "globals_", "lengths"),
    [
        (2, [[0], [0]], [N, N]),
        (2, [[], []], [N, 7]),
        (1, [[0, 5], [10]], [N, N]),
        (3, [[4], []], [N, 1]),
        (20, [[0], [3, 4, 5]], [N, 6]),
    ],
)
def test_windowed_engines_equal_the_loop(engine, one_sided, globals_, lengths):
    q, k, v, extra = tensors()
    masks, sees, real = window(one_sided, globals_, lengths)
    for columns in (extra, None):
        out, p_extra = attend(q, k, v, scale=0.5, mask=masks, columns=ExtraColumns(columns), engine=engine)
        expected, expected_extra = by_loops(q, k, v, columns, sees)
        torch.testing.assert_close(out, expected * real[:, None, :, None], atol=1e-10, rtol=0)
        if columns is not None:
            torch.testing.assert_close(p_extra, expected_extra * real[:, None, :, None], atol=1e-10, rtol=0)


def test_windowed_blocks_equal_the_reference_on_a_long_document():
    size = 300  # more than two blocks of queries, the last one incomplete
    g = torch.Generator().manual_seed(1)
    q, k, v, extra = (torch.randn(2, 2, size, w, generator=g) for w in (K, K, K, X))
    masks, _, _ = window(20, [[0, 150, 299], [0]], [size, 201], size=size)
    for columns in (None, extra):
        got = attend(q, k, v, scale=0.5, mask=masks, columns=ExtraColumns(columns), engine="gather-sdpa")
        want = attend(q, k, v, scale=0.5, mask=masks, columns=ExtraColumns(columns), engine="reference")
        torch.testing.assert_close(got[0], want[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("engine", engines())
def test_dense_gradients(engine):
    q, k, v, extra = (x.requires_grad_() for x in tensors())
    mask = torch.rand(B, 1, N, N) > 0.3
    mask = mask | torch.eye(N, dtype=torch.bool)

    def function(*args):
        return attend(*args[:3], scale=0.5, mask=DenseMask(mask), columns=ExtraColumns(args[3]), engine=engine)

    assert torch.autograd.gradcheck(function, (q, k, v, extra))


SLOW_ENGINES = ("flex",)  # compiled anew; test_flex.py compares its gradients by default


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_ENGINES else ()) for name in engines(Window)]
)
def test_windowed_gradients(engine):
    q, k, v, extra = (x[:, :1, :6, :2].clone().requires_grad_() for x in tensors())
    masks, _, _ = window(1, [[0], [3, 4]], [6, 5], size=6)

    def function(*args):
        return attend(*args[:3], scale=0.5, mask=masks, columns=ExtraColumns(args[3]), engine=engine)

    assert torch.autograd.gradcheck(function, (q, k, v, extra))


@pytest.mark.parametrize("engine", engines())
def test_hidden_columns_have_no_weight_and_no_nan(engine):
    q, k, v, extra = (x.float().requires_grad_() for x in tensors())
    hidden = extra.masked_fill(torch.tensor([True, False, True]), float("-inf"))
    out, p_extra = attend(q, k, v, scale=0.5, columns=ExtraColumns(hidden), engine=engine)
    assert float(p_extra.detach()[..., [0, 2]].abs().max()) == 0.0
    alone, _ = attend(q, k, v, scale=0.5, columns=ExtraColumns(extra[..., 1:2]), engine=engine)
    torch.testing.assert_close(out, alone)
    out.sum().backward()
    assert torch.isfinite(extra.grad).all()


def test_columns_carry_keys_exactly():
    """Keys given as columns (scores, then p V) are the same as keys in the sequence: the papers' unifying view."""
    q, k, v, _ = tensors(extra=False)
    whole, _ = attend(q, k, v, scale=0.5)
    out, p = attend(q, k[:, :, 3:], v[:, :, 3:], scale=0.5, columns=ExtraColumns(q @ k[:, :, :3].mT * 0.5))
    torch.testing.assert_close(out + p @ v[:, :, :3], whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("globals_", [[[0], [0]], [[0, 7, 15], [3]], [[], []]])
def test_longformer_attention_equals_transformers(globals_):
    """Output and gradients to 1e-5 in float32, padding and global tokens included."""
    config = tiny.CONFIGS["longformer"]()
    config.attention_probs_dropout_prob = 0.0
    theirs = LongformerSelfAttention(config, layer_id=1)
    ours = LongformerSelfAttention(config, layer_id=1)
    ours.load_state_dict(theirs.state_dict())
    ours.__class__, ours.global_tokens = WindowedSelfAttention, GlobalTokens()
    hidden = torch.randn(2, 16, 32)
    masked = torch.tensor([[False] * 16, [False] * 11 + [True] * 5])
    is_global = torch.tensor([[i in positions for i in range(16)] for positions in globals_])
    mask = torch.where(is_global, 1e4, 0.0).masked_fill(masked, -1e4)
    results = []
    for module in (theirs, ours):
        x = hidden.clone().requires_grad_()
        out = module(
            x,
            attention_mask=mask,
            is_index_masked=masked,
            is_index_global_attn=is_global,
            is_global_attn=bool(is_global.any()),
        )[0]
        (out * torch.arange(32.0)).sum().backward()
        results.append((out, x.grad, module.key.weight.grad))
    for theirs_, ours_ in zip(*results, strict=True):
        torch.testing.assert_close(ours_, theirs_, atol=1e-5 * theirs_.detach().abs().max().item(), rtol=0)


def test_unknown_engine_is_named():
    q, k, v, _ = tensors(extra=False)
    with pytest.raises(ConfigError, match=r"'sdpaa' is not known \(did you mean 'sdpa'\?\)"):
        attend(q, k, v, scale=0.5, engine="sdpaa")
    masks, _, _ = window(2, [[], []], [N, N])
    with pytest.raises(ConfigError, match="'sdpa' is not known"):
        attend(q, k, v, scale=0.5, mask=masks, engine="sdpa")


def test_a_dense_mask_is_of_one_kind():
    with pytest.raises(ConfigError, match="one kind of mask"):
        DenseMask(torch.ones(2, 2, dtype=torch.bool), is_causal=True)
