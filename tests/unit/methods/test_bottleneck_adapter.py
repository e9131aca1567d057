"""Bottleneck adapters and the MAM adapter alone: places, equations, counts, start, types."""

from typing import get_args

import pytest
import torch
from torch import nn

from foretoken.errors import ConfigError
from foretoken.methods.base import ACTIVATIONS
from foretoken.methods.bottleneck_adapter import Activation, BottleneckAdapterConfig
from foretoken.methods.dimensions import AttentionShape, Dimensions, Place
from foretoken.methods.mam_adapter import MAMAdapterConfig
from foretoken.methods.prefixes.prefix_tuning import PrefixTuningConfig

VARIANTS = ("houlsby", "pfeiffer", "parallel")
WIDTH = 6


def dimensions(*, layers=3, cross=1, width=WIDTH, heads=2):
    own = AttentionShape(heads, heads, width // heads)
    across = AttentionShape(heads, heads, width // heads, is_cross=True)
    return Dimensions(
        model_type="any",
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_key_value_heads=heads,
        head_dim=width // heads,
        vocab_size=100,
        attentions=(own,) * layers + (across,) * cross,
    )


def adapter(variant="houlsby", *, shaken=True, dtype=torch.float64, **options):
    torch.manual_seed(0)
    config = BottleneckAdapterConfig(variant=variant, **{"bottleneck_size": 4, **options})
    module = config.build(dimensions()).outputs[Place("feed_forward", 0)].to(dtype).eval()
    for parameter in module.parameters() if shaken else ():
        nn.init.normal_(parameter, std=0.7)
    return module


def vectors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(2, 5, WIDTH, generator=generator).to(dtype) for _ in range(2)]


@pytest.mark.parametrize(
    ("variant", "attentions", "layers"),
    [("houlsby", 4, 3), ("attention", 4, 0), ("pfeiffer", 0, 3), ("parallel", 0, 3)],
)
def test_where_the_adapters_are(variant, attentions, layers):
    """After every attention, the decoder's to the encoder too, and at every feed-forward block."""
    sites = BottleneckAdapterConfig(variant=variant).build(dimensions())
    expected = {Place("feed_forward", layer) for layer in range(layers)}
    expected |= {Place("attention", index) for index in range(attentions)}
    assert set(sites.outputs) == expected
    assert not sites.layers
    assert not sites.attention


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_equations(variant, activation):
    output, given = vectors()
    module = adapter(variant, activation=activation)
    read, scale = (given, 4.0) if variant == "parallel" else (output, 1.0)
    expected = output + scale * module.up(getattr(torch.nn.functional, activation)(module.down(read)))
    torch.testing.assert_close(module(output, given), expected, atol=1e-10, rtol=1e-10)
    other = adapter(variant, activation=activation, scale=0.5)
    torch.testing.assert_close(other(output, given), output + (expected - output) * 0.5 / scale)


def test_dropout_acts_in_training_only():
    output, given = vectors()
    module = adapter(adapter_dropout=0.5)
    assert torch.equal(module(output, given), module(output, given))
    module.train()
    assert not torch.equal(module(output, given), module(output, given))
    kept = adapter(adapter_dropout=0.0).train()
    assert torch.equal(kept(output, given), module.eval()(output, given))


def count(sites):
    modules = [*sites.attention.values(), *sites.outputs.values()]
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_mam_is_prefix_tuning_and_a_parallel_adapter():
    options = {"num_virtual_tokens": 5, "prefix_dropout": 0.0, "prefix_projection": True, "encoder_hidden_size": 3}
    config = MAMAdapterConfig(**options, bottleneck_size=4, activation="gelu", scale=2.0, adapter_dropout=0.25)
    torch.manual_seed(3)
    sites = config.build(dimensions())
    torch.manual_seed(3)
    prefix = PrefixTuningConfig(**options).build(dimensions())
    assert set(sites.attention) == set(prefix.attention)
    for index, branch in prefix.attention.items():
        state = sites.attention[index].state_dict()
        assert state.keys() == branch.state_dict().keys()
        assert all(torch.equal(state[name], tensor) for name, tensor in branch.state_dict().items())
    assert set(sites.outputs) == {Place("feed_forward", layer) for layer in range(3)}
    module = sites.outputs[Place("feed_forward", 1)]
    assert (module.parallel, module.scale, module.dropout.p) == (True, 2.0, 0.25)
    assert module.activation is ACTIVATIONS["gelu"]
    assert module.down.weight.shape == (4, WIDTH)


def test_mam_has_the_defaults_of_its_paper():
    config = MAMAdapterConfig()
    assert (config.num_virtual_tokens, config.bottleneck_size, config.scale) == (30, 512, 4.0)
    base = dimensions(layers=12, cross=0, width=768, heads=12)
    with torch.device("meta"):
        sites = config.build(base)
    assert count(sites) == 12 * (2 * 30 * 768 + 2 * 512 * 768 + 512 + 768)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (BottleneckAdapterConfig, {"variant": "serial"}, "variant is 'serial'; expected houlsby, attention, pfeif"),
        (BottleneckAdapterConfig, {"bottleneck_size": 0}, "bottleneck_size is 0; expected a whole number of at least"),
        (BottleneckAdapterConfig, {"scale": 0.0}, "scale is 0.0; expected a number above 0"),
        (MAMAdapterConfig, {"bottleneck_size": -1}, "bottleneck_size is -1; expected a whole number of at least 1"),
    ],
)
def test_values_that_cannot_work(config, options, message):
    with pytest.raises(ConfigError) as error:
        config(**options)
    assert message in str(error.value)
