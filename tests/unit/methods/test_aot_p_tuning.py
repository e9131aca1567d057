"""Ahead-of-time P-tuning: its two reparametrisations, what is looked up, and what may be asked of it."""

import math

import pytest
import torch
from torch import nn

from foretoken.errors import AdapterError, BackboneError, ConfigError
from foretoken.methods.aot.config import AoTPTuningConfig
from foretoken.methods.dimensions import Dimensions

V, D, L = 23, 8, 3
IDS = torch.tensor([[4, 1, 4, 22, 0], [1, 1, 7, 0, 0]])  # 5 distinct tokens in 10 places


def dimensions(*, vocab=V, width=D, layers=L, embedding_width=None, **changes):
    embedding = nn.Embedding(vocab, embedding_width or width)
    values = {"embedding": embedding, "model_type": "tiny", "num_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    return Dimensions(hidden_size=width, num_layers=layers, vocab_size=vocab, **values | changes)


def built(config, place=None):
    """Return the entries, with random values everywhere so that nothing is neutral."""
    entries = nn.ModuleList(config.build(place or dimensions()).layers.values())
    for parameter in entries.parameters():
        nn.init.normal_(parameter, std=0.5)
    return entries.eval()


def text(ids=IDS, width=D, **options):
    return torch.randn(*ids.shape, width, **options)


@pytest.fixture(params=["fc", "kronecker"])
def config(request):
    return AoTPTuningConfig(variant=request.param, rank=3)


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("tanh", torch.tanh)])
def test_other_activations(activation, function):
    place = dimensions()
    entry = built(AoTPTuningConfig(rank=3, activation=activation), place)[0]
    table = entry.shift.second(function(entry.shift.first(place.embedding.weight)))
    x = text()
    torch.testing.assert_close(entry.on_text(x, IDS), x + table[IDS])


@pytest.mark.parametrize("vocab", [1, 2, 3, 23, 24, 25, 26, 30522, 50265, 128256])
def test_default_factors_just_reach_the_vocabulary(vocab):
    a, b = AoTPTuningConfig(variant="kronecker").factors_for(vocab)
    assert vocab <= a * b < vocab + a
    assert 0 <= a - b <= 1 + math.isqrt(vocab) // 100


def test_rows_of_the_kronecker_product_begin_with_a_norm_near_1():
    sites = AoTPTuningConfig(variant="kronecker", rank=20).build(dimensions(vocab=3000))
    shift = sites.layers[0].shift
    norms = (shift.a.norm(dim=1)[:, None] * shift.b.norm(dim=1)).flatten()
    assert abs(norms.mean() - 1) < 0.1


def test_only_rows_of_distinct_tokens_are_computed(config):
    entries = built(config)
    seen = []
    for entry in entries:
        module = entry.shift.first if config.variant == "fc" else entry.shift
        module.register_forward_hook(lambda module, given, out: seen.append(out.shape[0]))
    for entry in entries.train():
        entry.on_text(text().requires_grad_(), IDS)
    assert seen == [5] * L


def test_dropout_acts_in_training_only(config):
    config.dropout = 0.5
    entry = built(config)[0]
    x = torch.zeros(2, 5, D)
    whole = entry.on_text(x, IDS)
    dropped = entry.train().on_text(x, IDS)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])


def test_frozen_embeddings_may_move_and_grow():
    place = dimensions()
    entry = built(AoTPTuningConfig(rank=3), place)[0]
    before = entry.on_text(torch.zeros(2, 5, D), IDS)
    place.embedding.to(torch.bfloat16)
    torch.testing.assert_close(entry.on_text(torch.zeros(2, 5, D), IDS), before, atol=0.05, rtol=0.05)
    grown = torch.randn(V + 2, D)
    place.embedding.weight.data = grown  # what resize_token_embeddings does
    out = entry.on_text(torch.zeros(1, 1, D), torch.tensor([[V + 1]]))
    torch.testing.assert_close(out[0, 0], entry.shift.second(nn.functional.gelu(entry.shift.first(grown[V + 1]))))


def test_tokens_beyond_the_product_are_refused():
    entry = built(AoTPTuningConfig(variant="kronecker", rank=2, factors=[5, 5]))[0]
    entry.on_text(text(IDS[:1, :1]), torch.tensor([[24]]))
    with pytest.raises(AdapterError, match="token 25 is beyond the 25 tokens"):
        entry.on_text(text(IDS[:1, :1]), torch.tensor([[25]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is 0; expected a whole number of at least 1"),
        ({"factors": [5, 5]}, "factors \\[5, 5\\] belong to variant='kronecker'"),
        ({"variant": "kronecker", "activation": "relu"}, "activation 'relu' belongs to variant='fc'"),
        ({"variant": "kronecker", "factors": [5]}, "factors is \\[5\\]; expected two whole numbers"),
    ],
)
def test_values_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        AoTPTuningConfig(**options)


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (None, "this tiny model has none"),
        (nn.Embedding(V, D, _weight=torch.zeros(V, D, dtype=torch.int8), _freeze=True), "quantises them as torch.int8"),
    ],
)
def test_embeddings_that_cannot_be_read_are_refused_by_fc_alone(embedding, message):
    place = dimensions(embedding=embedding)
    with pytest.raises(BackboneError, match=f"{message}.*variant='kronecker'"):
        AoTPTuningConfig().build(place)
    assert len(AoTPTuningConfig(variant="kronecker").build(place).layers) == L
