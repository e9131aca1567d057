"""Kernel propagation: its kernels against loops, its weights, and that lambda gives prefix-propagation back."""

import pytest
import torch
from peft import get_peft_model

from foretoken import KernelPropagationConfig, PrefixTuningConfig, StackConfig
from foretoken.attention import DenseMask, Weighting, Window, attend, engines
from foretoken.attention.kernels import KERNELS, kernel_attention, orthogonal_features
from foretoken.errors import BackboneError, ConfigError

from support import tiny


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_engine_knows_every_kernel(kernel):
    query, key, value = torch.randn(3, 2, 3, 30, 4).double()
    options = {"scale": 0.5, "weighting": Weighting(kernel)}
    causal = DenseMask(is_causal=True)
    dense = [attend(query, key, value, mask=causal, engine=e, **options)[0] for e in engines()]
    torch.testing.assert_close(dense[0], dense[1], atol=1e-9, rtol=1e-7)
    window = Window(3, torch.arange(30)[None].expand(2, -1) < 26, torch.tensor([[0, 9], [4, 0]]), torch.ones(2, 2) > 0)
    able = [e for e in engines(Window) if kernel == "exponential" or e not in ("block", "flex")]
    reference, *sparse = (attend(query, key, value, mask=window, engine=e, **options)[0] for e in reversed(able))
    for other in sparse:
        torch.testing.assert_close(other, reference, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("engine", ["block", "flex"])
def test_an_engine_refuses_what_it_cannot_do(engine):
    query = torch.randn(1, 1, 6, 4)
    window = Window(2, torch.ones(1, 6) > 0, torch.zeros(1, 0).long(), torch.ones(1, 0) > 0)
    for options in ({"kernel": "rbf"}, {"dropout": 0.5}):
        with pytest.raises(ConfigError, match=f"engine '{engine}' cannot do this call"):
            attend(query, query, query, scale=0.5, mask=window, weighting=Weighting(**options), engine=engine)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_sees_nothing_gets_zero(kernel):
    query = key = value = torch.randn(1, 1, 2, 4)
    nothing = torch.zeros(1, 1, 2, 2, dtype=torch.bool)
    assert kernel_attention(query, key, value, kernel=kernel, scale=0.5, mask=nothing).abs().max() == 0


@pytest.mark.parametrize("family", ["bert", "longformer", "llama"])
def test_alpha_zero_shows_the_text_the_frozen_attention(family):
    """Each attention to the text keeps its whole weight: with alpha 0 the text's rows are those of the frozen model."""
    inputs = tiny.batch(family, "FEATURE_EXTRACTION")
    model = get_peft_model(tiny.model(family, "FEATURE_EXTRACTION"), KernelPropagationConfig(alpha=0.0)).eval()
    tiny.shaken(model)
    with torch.no_grad():
        out = tiny.first(model(**inputs))
        with model.disable_adapter():
            expected = tiny.first(model(**inputs))
    real = inputs["attention_mask"][..., None]
    torch.testing.assert_close(out * real, expected * real, atol=2e-5, rtol=2e-5)


def test_global_tokens_can_have_a_kernel_of_their_own():
    """Changing a far away global token reaches a token through the global term alone."""
    config = KernelPropagationConfig(num_virtual_tokens=2, global_alpha=0.5)
    model = tiny.shaken(get_peft_model(tiny.model("longformer", "FEATURE_EXTRACTION"), config)).eval()
    ids = torch.randint(5, 100, (1, 40))
    is_global = torch.zeros(1, 40, dtype=torch.long)
    is_global[0, 2] = 1

    def first_layer(**kwargs):
        with torch.no_grad():
            return model(input_ids=ids, output_hidden_states=True, **kwargs).hidden_states[1][0, 35]

    together = first_layer(global_attention_mask=is_global)
    assert (together - first_layer()).abs().max() > 1e-3
    model.peft_config["default"].global_alpha = None
    for module in model.modules():
        if hasattr(module, "global_alpha"):
            module.global_alpha = 0.0
    without = first_layer(global_attention_mask=is_global)
    torch.testing.assert_close(without, first_layer(), atol=1e-5, rtol=1e-5)


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="defined for exponential kernels"):
        KernelPropagationConfig(alpha_scope="lambda", kernel="rbf")
    with pytest.raises(ConfigError, match="alpha is 'much'; expected a number"):
        KernelPropagationConfig(alpha="much")
    with pytest.raises(BackboneError, match="bert models have no global tokens"):
        get_peft_model(tiny.model("bert"), KernelPropagationConfig(global_alpha=0.1))
    both = StackConfig(configs=[KernelPropagationConfig(text_kernel="polynomial"), PrefixTuningConfig()])
    model = get_peft_model(tiny.model("bert"), both)
    with pytest.raises(ConfigError, match="polynomial kernel shares no softmax with score columns"):
        model(**tiny.batch("bert"))


@torch.no_grad()
def test_many_random_features_come_near_the_exponential_kernel_and_few_do_not_overflow():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 5, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    exact = kernel_attention(query, key, value, kernel="exponential", scale=8**-0.5)

    def error(number):
        found = [
            kernel_attention(
                query,
                key,
                value,
                kernel="performer",
                scale=8**-0.5,
                projection=orthogonal_features(number, 8, seed=seed),
            )
            for seed in range(4)
        ]
        return sum(float((one - exact).abs().mean()) for one in found) / 4

    assert error(20_000) < 0.05 < 0.2 < error(4)
    for size in (1e3, 1e-3):
        projection = orthogonal_features(16, 8, seed=0)
        found = kernel_attention(
            query.float() * size, key.float(), value.float(), kernel="performer", scale=8**-0.5, projection=projection
        )
        assert found.isfinite().all()
        assert found.abs().max() <= value.abs().max() + 1e-5  # weights that are positive and sum to 1
