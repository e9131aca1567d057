"""Inducer-tuning alone: its equations against loops, its parameter counts, its start, its types."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model, RobertaConfig, RobertaModel

from foretoken.errors import ConfigError
from foretoken.methods.dimensions import AttentionShape, Dimensions, Place
from foretoken.methods.inducer_tuning import InducerTuningConfig

HEADS, HEAD_DIM, WIDTH, TOKENS = 2, 3, 5, 4
SCALE = HEAD_DIM**-0.5


def dimensions(*, attentions, layers=None, width=WIDTH, vocab_size=100):
    shape = attentions[0]
    return Dimensions(
        model_type="any",
        hidden_size=width,
        num_layers=len(attentions) if layers is None else layers,
        num_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=vocab_size,
        attentions=attentions,
    )


SMALL = dimensions(attentions=(AttentionShape(HEADS, HEADS, HEAD_DIM),))
BASE = {"attentions": (AttentionShape(12, 12, 64),) * 12, "width": 768}
GPT2_SMALL = dimensions(**BASE, vocab_size=50_257)
ROBERTA_BASE = dimensions(**BASE, vocab_size=50_265)


def build(variant="inducer", *, on=SMALL, shaken=True, dtype=torch.float64, **options):
    torch.manual_seed(0)
    sites = InducerTuningConfig(variant=variant, **options).build(on)
    for module in modules(sites):
        module.to(dtype)
        for parameter in module.parameters() if shaken else ():
            nn.init.normal_(parameter, std=0.7)
    return sites


def modules(sites):
    return [*sites.attention.values(), *sites.outputs.values()]


def count(sites):
    return sum(parameter.numel() for module in modules(sites) for parameter in module.parameters())


def counted(on, variant="inducer", **options):
    with torch.device("meta"):
        return count(InducerTuningConfig(variant=variant, **options).build(on))


def size(model_class, config):
    with torch.device("meta"):
        return model_class(config).num_parameters()


def test_parameters_of_the_paper():
    """Tables 1-3 with the sizes of Table 5."""
    gpt2, roberta = (
        size(GPT2Model, GPT2Config()),
        size(RobertaModel, RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1)),
    )
    assert gpt2 == 124_439_808
    for sizes, total, percent in (
        ({"variant": "adaptive", "value_bottleneck_size": 108}, 2_015_424, "1.62"),
        ({"variant": "extension", "value_bottleneck_size": 16}, 1_928_448, "1.55"),
        ({"key_bottleneck_size": 10, "value_bottleneck_size": 15}, 2_003_472, "1.61"),
        ({"variant": "gating", "key_bottleneck_size": 10, "value_bottleneck_size": 15}, 2_003_472, "1.61"),
    ):
        assert counted(GPT2_SMALL, **sizes) == total
        assert f"{100 * total / gpt2:.2f}" == percent
    total = counted(ROBERTA_BASE, key_bottleneck_size=6, value_bottleneck_size=4)
    assert total == counted(ROBERTA_BASE) == 609_696  # it is the default
    assert f"{100 * total / roberta:.3f}" == "0.489"


def test_large_queries_stay_finite_in_fp16():
    """The product is scaled before it is summed: |q|^2 alone would overflow."""
    columns = build("extension", dtype=torch.float16).attention[0]
    query = torch.full((1, HEADS, 1, HEAD_DIM), 180.0, dtype=torch.float16)
    scores = columns.scores(query, SCALE)
    assert (query * query).sum(-1).isinf().all()
    torch.testing.assert_close(scores, torch.full_like(scores, 180.0**2 * HEAD_DIM * SCALE))


def test_every_attention_and_every_query_projection_is_reached():
    """Grouped queries have a network per query head; cross-attentions have a columns; global queries an update."""
    grouped, cross = AttentionShape(4, 2, 8, query_maps=2), AttentionShape(2, 2, 6, is_cross=True)
    on = dimensions(attentions=(grouped, grouped, cross), layers=2, width=10)
    sites = build(on=on, lora_r=3, parallel_bottleneck_size=2, shaken=False)
    assert list(sites.attention) == [0, 1, 2]
    assert sites.attention[0].key_network.down.weight.shape == (4, 8, 6)
    assert sites.attention[2].key_network.down.weight.shape == (2, 6, 6)
    queries = {Place("query", 0, 0): 32, Place("query", 0, 1): 32, Place("query", 1, 0): 32, Place("query", 1, 1): 32}
    queries[Place("query", 2, 0)] = 12
    assert {place: e.up.out_features for place, e in sites.outputs.items() if place.kind == "query"} == queries
    adapters = {place for place in sites.outputs if place.kind == "feed_forward"}
    assert adapters == {Place("feed_forward", 0), Place("feed_forward", 1)}
    assert not build(on=on).outputs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_bottleneck_size": 0}, "value_bottleneck_size is 0; expected a whole number of at least 1"),
        ({"variant": "adaptive", "key_bottleneck_size": 3}, "the virtual key of variant 'adaptive' is the query"),
        ({"lora_alpha": 8.0}, "lora_alpha is 8.0, but lora_r is 0: there is no update to scale; set lora_r too"),
        ({"parallel_scale": 2.0}, "parallel_scale is 2.0, but parallel_bottleneck_size is 0"),
    ],
)
def test_values_that_cannot_work(options, message):
    with pytest.raises(ConfigError) as error:
        InducerTuningConfig(**options)
    assert message in str(error.value)
