"""The kernel decomposition of prefix-propagation against the naive models."""

from functools import partial

import pytest
import torch

from foretoken import KernelPropagationConfig
from foretoken.attention.kernels import orthogonal_features
from foretoken.methods import reference

from support import naive_edits
from support.adapted import assert_equals_oracle
from support.families import FAMILIES, HEAD_DIM, NUM_LAYERS, WIDTH, documents, oracle

P = 3
ALPHA = 0.3


def rows(p):
    return [p[layer, "layer"]["prefix.weight"] for layer in range(NUM_LAYERS)]


def assert_equals_kernels(family, *, alpha_of=None, scope="fixed", **kernels):
    """``alpha_of(parameters)`` returns alpha(layer, seen)."""
    config = KernelPropagationConfig(num_virtual_tokens=P, alpha=ALPHA, alpha_scope=scope, **kernels)

    def edits_of(p, ids):
        return naive_edits.kernel_propagation(rows(p), alpha=alpha_of and alpha_of(p), **kernels)

    assert_equals_oracle(family, config, edits_of)


def fixed(p):
    return lambda layer, seen: ALPHA


@pytest.mark.parametrize("family", FAMILIES)
def test_lambda_for_alpha_is_prefix_propagation(family):
    """Eq. 5 is eq. 1 in every layer and family: of windows, of global tokens, and of what a causal query sees."""
    prefixes = 0.3 * torch.randn(NUM_LAYERS, P, WIDTH).double()
    for ids in documents():
        whole = oracle(family)(ids, naive_edits.prefix_propagation(prefixes))
        split = oracle(family)(ids, naive_edits.kernel_propagation(prefixes))
        torch.testing.assert_close(split, whole, atol=1e-10, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_scope_lambda(family):
    assert_equals_kernels(family, scope="lambda")


@pytest.mark.parametrize("kernel", naive_edits.KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_kernel_of_the_rows(family, kernel):
    assert_equals_kernels(family, alpha_of=fixed, kernel=kernel)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_features_of_performer(family):
    number, seed = 6, 3
    kernel = partial(reference.performer, directions=orthogonal_features(number, HEAD_DIM, seed=seed))
    config = KernelPropagationConfig(
        num_virtual_tokens=P, alpha=ALPHA, kernel="performer", num_random_features=number, random_feature_seed=seed
    )
    assert_equals_oracle(
        family, config, lambda p, _: naive_edits.kernel_propagation(rows(p), alpha=fixed(p), kernel=kernel)
    )


@pytest.mark.parametrize("text_kernel", ["linear", "polynomial", "rbf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernel_of_the_text(family, text_kernel):
    assert_equals_kernels(family, alpha_of=fixed, text_kernel=text_kernel)


@pytest.mark.parametrize("text_kernel", ["exponential", "polynomial"])
def test_kernel_of_the_global_tokens(text_kernel):
    """The paper's question 5, local and global attention as separate kernels, where there are both."""
    assert_equals_kernels("longformer", alpha_of=fixed, text_kernel=text_kernel, global_alpha=0.4)


def of_the_model(p):
    return lambda layer, seen: p[0, "attention"]["alpha.weight"][0, 0, 0]


def of_each_layer(p):
    return lambda layer, seen: p[layer, "attention"]["alpha.weight"][0, 0, 0]


def of_each_head(p):
    return lambda layer, seen: p[layer, "attention"]["alpha.weight"]


def of_each_query(p):
    def alpha(layer, seen):
        own = p[layer, "attention"]
        return seen.query @ own["alpha.weight"] + own["alpha.bias"]

    return alpha


TRAINED = {"model": of_the_model, "layer": of_each_layer, "head": of_each_head, "query": of_each_query}


@pytest.mark.parametrize("scope", TRAINED)
@pytest.mark.parametrize("family", FAMILIES)
def test_trained_alpha(family, scope):
    assert_equals_kernels(family, scope=scope, alpha_of=TRAINED[scope])
