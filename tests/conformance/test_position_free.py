"""A prefix that every query meets without its rotation: equally near to every token of the text."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import foretoken as ft
from foretoken.attention.rotary import unrotated
from foretoken.errors import AdapterError, BackboneError, ConfigError

from support import tiny

ROTARY = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text")
P = {"num_virtual_tokens": 3, "prefix_dropout": 0.0}
METHODS = {
    "prefix-propagation": ft.PrefixPropagationConfig,
    "prefix-tuning": ft.PrefixTuningConfig,
    "decoupled-prefix": ft.DecoupledPrefixConfig,
    "prompt-tuning": ft.PromptTuningConfig,
    "selective-prefix-tuning": ft.SelectivePrefixTuningConfig,
    "kernel-propagation": lambda **kw: ft.KernelPropagationConfig(alpha=0.5, alpha_scope="head", **kw),
    "kernel-propagation, lambda": lambda **kw: ft.KernelPropagationConfig(alpha_scope="lambda", **kw),
    "mam-adapter": lambda **kw: ft.MAMAdapterConfig(bottleneck_size=4, **kw),
    "stack": lambda task_type=None, **kw: ft.StackConfig(
        task_type=task_type, configs=[ft.PrefixPropagationConfig(**kw), ft.PrefixTuningConfig(**kw), LoraConfig(r=2)]
    ),
}


def adapted(family, method, *, position_free=True, task="CAUSAL_LM"):
    config = METHODS[method](task_type=task, position_free=position_free, **P)
    return tiny.shaken(get_peft_model(tiny.model(family, task), config).eval())


def logits(model, ids, first=0, **kwargs):
    positions = torch.arange(first, first + ids.shape[1])[None].expand(len(ids), -1)
    with torch.no_grad():
        out = model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids), **kwargs)
    return tiny.first(out)


def text(size=2, length=20):
    return torch.randint(5, 100, (size, length), generator=torch.Generator().manual_seed(4))


def close(a, b):
    return torch.allclose(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaling", [{}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}])
def test_rotation_is_undone(scaling):
    """In float64, q before the rotation comes back; where a family scales its rotations, times the factor."""
    rope = {"rope_type": "default", "rope_theta": 1e4} | scaling
    embedding = LlamaRotaryEmbedding(LlamaConfig(hidden_size=32, num_attention_heads=4, rope_parameters=rope))
    query = torch.randn(2, 4, 50, 8, dtype=torch.float64)
    positions = torch.stack([torch.arange(50), torch.arange(50) * 7])
    angles = positions[..., None] * embedding.inv_freq.double().repeat(2)
    factor = embedding.attention_scaling
    cosine, sine = angles.cos() * factor, angles.sin() * factor
    rotated, _ = apply_rotary_pos_emb(query, query, cosine, sine)
    assert (rotated - query).abs().max() > 1
    torch.testing.assert_close(unrotated(rotated, cosine, sine), query * factor, atol=1e-12, rtol=1e-12)
    assert (factor == 1.0) == (not scaling)


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize("method", METHODS)
class TestRotaryFamilies:
    def test_where_the_text_stands_does_not_matter(self, method, family):
        free, fixed = (adapted(family, method, position_free=value) for value in (True, False))
        assert close(logits(free, text(), first=30), logits(free, text()))
        assert not close(logits(fixed, text(), first=30), logits(fixed, text()))

    @pytest.mark.covering
    def test_at_position_0_it_is_the_same(self, method, family):
        free, fixed = (adapted(family, method, position_free=value) for value in (True, False))
        assert close(logits(free, text(length=1)), logits(fixed, text(length=1)))

    @pytest.mark.covering
    def test_generation_with_and_without_cache(self, method, family):
        model = adapted(family, method)
        options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
        ids, mask = text(), torch.ones(2, 20, dtype=torch.long)
        mask[1, :5] = 0
        cached, uncached = (
            model.generate(ids, attention_mask=mask, **options, use_cache=value) for value in (True, False)
        )
        assert torch.equal(cached, uncached)
        alone = model.generate(ids[1:, 5:], **options)
        assert torch.equal(cached[1, -6:], alone[0, -6:])

    @pytest.mark.covering
    def test_every_document_has_its_own(self, method, family):
        """In one batch: a position-free adapter, one that is not, and none."""
        model = adapted(family, method)
        model.add_adapter("fixed", METHODS[method](task_type="CAUSAL_LM", position_free=False, **P))
        tiny.shaken(model.eval())
        ids = text(size=3)
        names = ["fixed", "default", "__base__"]
        mixed = logits(model, ids, adapter_names=names)
        for row, name in enumerate(names[:2]):
            model.set_adapter(name)
            torch.testing.assert_close(mixed[row], logits(model, ids)[row], atol=3e-5, rtol=2e-5)
        with model.disable_adapter():
            torch.testing.assert_close(mixed[2], logits(model, ids)[2], atol=3e-5, rtol=2e-5)

    @pytest.mark.covering
    def test_checkpointing_changes_no_gradient(self, method, family):
        model = adapted(family, method, task="SEQ_CLS").train()
        inputs = tiny.batch(family)

        def gradients():
            model.zero_grad()
            model(**inputs).loss.backward()
            return {k: v.grad.clone() for k, v in model.named_parameters() if v.requires_grad}

        expected = gradients()
        assert all(gradient.abs().max() > 0 for name, gradient in expected.items() if ".foretoken." in name)
        for reentrant in (False, True):
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
            for name, gradient in gradients().items():
                torch.testing.assert_close(gradient, expected[name])


def test_encoders_with_rotary_positions_take_trained_keys_only():
    """ModernBERT's rows stand in one sequence with the text."""
    task = "FEATURE_EXTRACTION"
    for method in ("prefix-propagation", "prompt-tuning", "kernel-propagation", "stack"):
        with pytest.raises(BackboneError, match=r"position_free prefix .* modernbert .*position_free=False"):
            adapted("modernbert", method, task=task)
    free, fixed = (adapted("modernbert", "prefix-tuning", position_free=v, task=task) for v in (True, False))
    assert close(logits(free, text(), first=30), logits(free, text()))
    assert not close(logits(fixed, text(), first=30), logits(fixed, text()))


def test_adapters_that_act_together_must_agree():
    model = adapted("llama", "prefix-propagation")
    model.add_adapter("fixed", ft.PrefixPropagationConfig(task_type="CAUSAL_LM", **P))
    model.add_adapter("free", ft.PrefixPropagationConfig(task_type="CAUSAL_LM", position_free=True, **P))
    model.base_model.set_adapter(["default", "free"])
    assert torch.isfinite(logits(model, text())).all()
    model.base_model.set_adapter(["default", "fixed"])
    with pytest.raises(AdapterError, match=r"default, fixed cannot act together: position_free is set only in default"):
        logits(model, text())


def test_rows_of_a_stack_must_agree():
    rows = [ft.PrefixPropagationConfig(position_free=True), ft.PromptTuningConfig()]
    with pytest.raises(ConfigError, match="set position_free in all of its members or in none"):
        get_peft_model(tiny.model("llama"), ft.StackConfig(configs=rows))
    keys = [ft.PrefixPropagationConfig(position_free=True), ft.PrefixTuningConfig()]
    assert get_peft_model(AutoModel.from_config(tiny.CONFIGS["llama"]()), ft.StackConfig(configs=keys))
