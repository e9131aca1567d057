"""Inducer-tuning alone: its equations against loops, its parameter counts, its start, its types."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2Model, RobertaConfig, RobertaModel

from foretoken.attention import DenseMask, ExtraColumns, attend
from foretoken.errors import ConfigError
from foretoken.methods.bottleneck_adapter import PARALLEL_SCALE
from foretoken.methods.dimensions import AttentionShape, Dimensions, Place
from foretoken.methods.inducer_tuning import InducerTuningConfig

VARIANTS = ("inducer", "extension", "adaptive", "gating")
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


def qkv(*, batch=2, dtype=torch.float64, requires_grad=False):
    generator = torch.Generator().manual_seed(5)
    shape = (batch, HEADS, TOKENS, HEAD_DIM)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_(requires_grad) for _ in range(3)]


def visible(batch=2):
    """Each token sees itself and those before it; the second document's last token is padding."""
    mask = torch.ones(TOKENS, TOKENS).tril().bool().expand(batch, 1, TOKENS, TOKENS).clone()
    mask[1, :, :, -1] = False
    return mask


def output_projection():
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(HEADS, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    return weight, torch.randn(WIDTH, generator=generator, dtype=torch.float64)


def sublayer(columns, q, k, v, mask):
    """The whole attention sub-layer as the sites define it, from two attentions: one with the column, one without."""
    frozen, _ = attend(q, k, v, scale=SCALE, mask=DenseMask(mask))
    _, probabilities = attend(
        q, k, v, scale=SCALE, mask=DenseMask(mask), columns=ExtraColumns(columns.scores(q, SCALE))
    )
    weight, bias = output_projection()
    out = torch.einsum("bhnk,hkd->bnd", columns.combine(frozen, probabilities, q), weight) + bias
    after = columns.after_projection(probabilities, q)
    return out if after is None else out + after


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


@pytest.mark.parametrize(
    ("on", "key", "value", "lora_r", "parallel", "total"),
    [
        (GPT2_SMALL, 5, 12, 24, 0, 2_002_320 - 12 * 768),  # the paper's 1.61 % has the biases of the released LoRA too
        (GPT2_SMALL, 3, 7, 16, 42, 1_992_600),
        (ROBERTA_BASE, 2, 4, 4, 0, 609_120),
        (ROBERTA_BASE, 2, 2, 4, 12, 599_760),
    ],
)
def test_parameters_with_update_and_adapter(on, key, value, lora_r, parallel, total):
    """The sizes of Table 5 for + LoRA and MAM."""
    sizes = {"key_bottleneck_size": key, "value_bottleneck_size": value}
    assert counted(on, **sizes, lora_r=lora_r, parallel_bottleneck_size=parallel) == total
    adapter = 2 * 768 * parallel + parallel + 768 if parallel else 0
    assert total == 12 * (1548 * key + 768 + 9996 * value + 768 + 1536 * lora_r + adapter)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_starts_at_the_frozen_model(variant):
    """Gating does not, by its nature: it takes (1 - lambda) of the attention."""
    options = {"lora_r": 2, "parallel_bottleneck_size": 3}
    sites = build(variant, shaken=False, **options)
    columns = sites.attention[0]
    out, query, _ = qkv()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    probabilities = torch.rand(2, HEADS, TOKENS, 1, dtype=torch.float64)
    kept = 1 - probabilities if variant == "gating" else 1
    assert torch.equal(columns.combine(out, probabilities, query), out * kept)
    after = columns.after_projection(probabilities, query)
    assert (after is None) == (variant == "adaptive")
    assert after is None or torch.equal(after, torch.zeros(2, TOKENS, WIDTH, dtype=torch.float64))
    for place, edit in sites.outputs.items():
        y = torch.randn(2, TOKENS, HEADS * HEAD_DIM if place.kind == "query" else WIDTH, dtype=torch.float64)
        assert torch.equal(edit(y, x), y)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_gets_gradient_after_two_steps(variant):
    """At the start the last layers alone do; they are what keeps the others' effect at zero."""
    columns = build(variant, shaken=False).attention[0]
    optimizer = torch.optim.SGD(columns.parameters(), lr=1.0)
    q, k, v = qkv()

    def step():
        optimizer.zero_grad()
        torch.manual_seed(2)
        out = sublayer(columns, q, k, v, visible())
        (out * torch.randn(out.shape, dtype=torch.float64)).sum().backward()
        reached = {name for name, p in columns.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        optimizer.step()
        return reached

    names = {name for name, _ in columns.named_parameters()}
    last = {name for name in names if name.startswith("value_network.up")}
    if variant == "gating":  # lambda acts on f as well
        last |= {name for name in names if name.startswith("key_network.up")}
    assert step() == last
    step()
    assert step() == names


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(variant, dtype):
    """Parameters in fp32 beside activations in half precision; finite for lambda 0 and 1."""
    sites = build(variant, dtype=torch.float32, lora_r=2, parallel_bottleneck_size=3)
    columns = sites.attention[0]
    q, k, v = qkv(dtype=torch.float32)
    half = [x.to(dtype) for x in (q, k, v)]
    scores = columns.scores(half[0], SCALE)
    assert scores.dtype == dtype
    _, probabilities = attend(*half, scale=SCALE, mask=DenseMask(visible()), columns=ExtraColumns(scores))
    for lam in (probabilities, torch.zeros_like(probabilities), torch.ones_like(probabilities)):
        out, after = columns.combine(half[2], lam, half[0]), columns.after_projection(lam, half[0])
        assert out.dtype == dtype
        assert torch.isfinite(out).all()
        assert after is None or (after.dtype == dtype and torch.isfinite(after).all())
    x = torch.randn(2, TOKENS, WIDTH).to(dtype)
    for edit in sites.outputs.values():
        y = torch.randn(2, TOKENS, edit.up.out_features).to(dtype)
        assert edit(y, x).dtype == dtype


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


def test_the_parallel_adapter_is_scaled():
    for scale, expected in ((None, PARALLEL_SCALE), (2.0, 2.0)):
        sites = build(parallel_bottleneck_size=2, parallel_scale=scale)
        adapter = sites.outputs[Place("feed_forward", 0)]
        assert (adapter.scale, adapter.parallel) == (expected, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "inducr"}, "variant is 'inducr' (did you mean 'inducer'?); expected inducer, extension, adaptive"),
        ({"value_bottleneck_size": 0}, "value_bottleneck_size is 0; expected a whole number of at least 1"),
        ({"key_bottleneck_size": 0}, "key_bottleneck_size is 0; expected a whole number of at least 1"),
        ({"variant": "adaptive", "key_bottleneck_size": 3}, "the virtual key of variant 'adaptive' is the query"),
        ({"lora_r": -1}, "lora_r is -1; expected a whole number of at least 0"),
        ({"lora_r": 4, "lora_alpha": 0}, "lora_alpha is 0; expected a number above 0"),
        ({"lora_alpha": 8.0}, "lora_alpha is 8.0, but lora_r is 0: there is no update to scale; set lora_r too"),
        ({"parallel_bottleneck_size": 2.5}, "parallel_bottleneck_size is 2.5; expected a whole number"),
        ({"parallel_scale": 2.0}, "parallel_scale is 2.0, but parallel_bottleneck_size is 0"),
    ],
)
def test_values_that_cannot_work(options, message):
    with pytest.raises(ConfigError) as error:
        InducerTuningConfig(**options)
    assert message in str(error.value)
