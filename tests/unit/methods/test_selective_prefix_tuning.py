"""Selective prefix tuning: the mask and the loss in training, in half precision, and at their limits."""

import math

import pytest
import torch

from foretoken import SelectivePrefixTuningConfig
from foretoken.errors import ConfigError
from foretoken.methods import reference
from foretoken.methods.dimensions import AttentionShape, Dimensions
from foretoken.methods.prefixes.selective_prefix_tuning import SoftMask

P = 3
SHAPES = (AttentionShape(4, 4, 8), AttentionShape(4, 2, 8), AttentionShape(4, 2, 16, is_cross=True))
PROJECTED = {"prefix_projection": True, "encoder_hidden_size": 6}


def built(shapes=SHAPES, **options):
    """Return a config and what it builds, in float64, with a prefix of ordinary size."""
    config = SelectivePrefixTuningConfig(**{"num_virtual_tokens": P, "prefix_dropout": 0.0, "init_std": 1.0} | options)
    dimensions = Dimensions("none", 32, 2, 4, 4, 8, 100, attentions=shapes)
    sites = config.build(dimensions)
    for columns in sites.attention.values():
        columns.double()
    return config, sites


def prefixes(sites):
    return [columns.prefix().detach() for columns in sites.attention.values()]


def loss_of(prefixes):
    """Eq. 7 to 9, layer by layer: their widths differ."""
    return sum(reference.selective_loss(*both.double()[None].chunk(2, dim=-1)) for both in prefixes)


def test_dropped_scores_are_those_of_no_likeness_and_the_mask_sees_them():
    """In training the mask is given 0 or ``s / (1 - p)``; elsewhere ``s``."""
    _, sites = built((AttentionShape(4, 4, 8),), alpha=2.0, score_dropout=0.25)
    columns = sites.attention[0]
    query = torch.randn(2, 4, 50, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = columns.unmasked_scores(query, 0.3).detach()

    def masked(scores):
        return scores - torch.log1p(torch.exp(-2.0 * scores))

    torch.manual_seed(0)
    found = columns.train().scores(query, 0.3).detach()
    dropped = (found - math.log(0.5)).abs() < 1e-12
    assert 0.2 < dropped.double().mean() < 0.3
    torch.testing.assert_close(found[~dropped], masked(plain[~dropped] / 0.75))
    torch.testing.assert_close(columns.eval().scores(query, 0.3).detach(), masked(plain))


@pytest.mark.parametrize("options", [{}, PROJECTED])
def test_the_loss_is_equations_7_to_10(options):
    config, sites = built(selective_loss_weight=0.3, **options)
    assert config.auxiliary_loss(sites).item() == pytest.approx(0.3 * loss_of(prefixes(sites)).item(), rel=1e-12)


@pytest.mark.parametrize("zeros", [False, True])
def test_one_token_or_none_of_any_length_is_no_division_by_zero(zeros):
    config, sites = built(num_virtual_tokens=3 if zeros else 1)
    if zeros:
        for columns in sites.attention.values():
            torch.nn.init.zeros_(columns.prefix.weight)
    loss = config.auxiliary_loss(sites)
    loss.backward()
    assert loss == 0
    assert all(columns.prefix.weight.grad.abs().max() == 0 for columns in sites.attention.values())


def test_the_loss_is_computed_in_float32():
    """Autocast and half precision round cosines to two digits; the loss is a sum of many small ones."""
    config, sites = built(selective_loss_weight=1.0, **PROJECTED)
    for columns in sites.attention.values():
        columns.float()
    expected = loss_of(prefixes(sites)).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = config.auxiliary_loss(sites)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    config, sites = built(selective_loss_weight=1.0)
    for columns in sites.attention.values():
        columns.bfloat16()
    assert config.auxiliary_loss(sites).item() == pytest.approx(loss_of(prefixes(sites)).item(), rel=1e-5)


def test_mask_and_loss_are_switched_alone():
    config, sites = built(alpha=None)
    assert {columns.score_mask for columns in sites.attention.values()} == {None}
    assert config.auxiliary_loss(sites) > 0
    config, sites = built(selective_loss_weight=0)
    assert {columns.score_mask for columns in sites.attention.values()} == {SoftMask(8.0)}
    assert config.auxiliary_loss(sites) is None


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "8", True])
def test_an_alpha_that_cannot_be(value):
    with pytest.raises(ConfigError, match=r"alpha is .*; expected a number above 0 .* or None for no mask"):
        SelectivePrefixTuningConfig(alpha=value)


@pytest.mark.parametrize("value", [-1e-4, math.inf, math.nan, None, "1e-4", False])
def test_a_weight_that_cannot_be(value):
    with pytest.raises(ConfigError, match=r"selective_loss_weight is .*; expected a number from 0 "):
        SelectivePrefixTuningConfig(selective_loss_weight=value)
