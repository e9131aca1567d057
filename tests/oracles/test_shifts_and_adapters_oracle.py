"""Ahead-of-time P-tuning, bottleneck adapters and the MAM adapter against the naive models."""

import pytest

from foretoken import AoTPTuningConfig, BottleneckAdapterConfig, MAMAdapterConfig, PrefixPropagationConfig, StackConfig

from support import naive_edits
from support.adapted import assert_equals_oracle
from support.families import FAMILIES, oracle


@pytest.mark.parametrize("family", FAMILIES)
def test_ahead_of_time_fc(family):
    embedding = oracle(family).embedding

    def edits_of(p, ids):
        return naive_edits.ahead_of_time_fc(p, ids, embedding)

    assert_equals_oracle(family, AoTPTuningConfig(rank=4), edits_of)


@pytest.mark.parametrize("factors", [None, [9, 12]])
@pytest.mark.parametrize("family", FAMILIES)
def test_ahead_of_time_kronecker(family, factors):
    """A vocabulary of 100 in 10 x 10 by default, or as given; a product that is larger than the vocabulary."""
    config = AoTPTuningConfig(variant="kronecker", rank=2, factors=factors)
    assert_equals_oracle(family, config, lambda p, ids: naive_edits.ahead_of_time_kronecker(p, ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_ahead_of_time_beside_prefix_propagation(family):
    """Rows in front are no tokens: the table says nothing about them."""
    config = StackConfig(configs=[PrefixPropagationConfig(num_virtual_tokens=2), AoTPTuningConfig(rank=4)])
    embedding = oracle(family).embedding

    def edits_of(p, ids):
        edits = naive_edits.prefix_propagation([p[i, "layer"]["parts.0.prefix.weight"] for i in range(3)])
        own = {place: {k.removeprefix("parts.1."): v for k, v in named.items()} for place, named in p.items()}
        edits.on_text = naive_edits.ahead_of_time_fc(own, ids, embedding).on_text
        return edits

    assert_equals_oracle(family, config, edits_of)


@pytest.mark.parametrize("variant", ["houlsby", "attention", "pfeiffer", "parallel"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bottleneck_adapter(family, variant):
    layer_norm = variant in ("attention", "parallel")
    config = BottleneckAdapterConfig(variant=variant, bottleneck_size=5, layer_norm=layer_norm)
    scale = 4.0 if variant == "parallel" else 1.0
    assert_equals_oracle(family, config, lambda p, ids: naive_edits.bottleneck_adapter(p, variant=variant, scale=scale))


@pytest.mark.parametrize("family", FAMILIES)
def test_mam_adapter(family):
    """Prefix-tuning, and a parallel adapter at the feed-forward block."""
    config = MAMAdapterConfig(num_virtual_tokens=3, bottleneck_size=5, scale=2.0)

    def edits_of(p, ids):
        edits = naive_edits.bottleneck_adapter(p, variant="parallel", scale=2.0)
        edits.attend = naive_edits.prefix_tuning([p[i, "attention"]["prefix.weight"] for i in range(3)]).attend
        return edits

    assert_equals_oracle(family, config, edits_of)
