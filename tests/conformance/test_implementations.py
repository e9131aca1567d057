"""What is asked of transformers beside an adapter: other attention implementations, checkpoints in mixed batches."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, StackConfig
from foretoken.errors import BackboneError

from support import tiny
from support.table import adapted
from support.tiny import run

INTERFACE = ("bert", "distilbert", "modernbert", "eurobert", "nomic_bert", "gpt2", "llama", "gemma3_text", "bart")


@pytest.mark.parametrize("family", INTERFACE)
@pytest.mark.parametrize("row", ["prefix-propagation", "prefix-tuning", "stack, of every site"])
def test_choosing_another_implementation_later_keeps_the_adapter(row, family):
    inputs = tiny.batch(family, labels=False)
    model = tiny.shaken(adapted(tiny.model(family), row, task_type="SEQ_CLS"))
    expected = run(model, inputs)
    for implementation in ("eager", "sdpa"):
        model.get_base_model().set_attn_implementation(implementation)
        torch.testing.assert_close(run(model, inputs), expected, atol=2e-5, rtol=2e-5)
    plain = model.unload()
    assert plain.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "mpnet", "big_bird", "big_bird, full", "t5", "bart"])
def test_attention_maps_are_the_weights_of_the_texts_own_keys(family):
    """With prefix-tuning the rest of each row's weight is on the prefix."""
    plain, inputs = tiny.model(family), tiny.batch(family, labels=False)
    if family not in ("deberta-v2", "mpnet", "big_bird"):
        plain.set_attn_implementation("eager")
    model = tiny.shaken(adapted(plain, "prefix-tuning", task_type=tiny.main_task(family)))
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    names = ("encoder_attentions", "cross_attentions") if family in tiny.SEQ2SEQ else ("attentions",)
    for weights in (output[name][0] for name in names):
        assert weights.shape[-1] == 20
        assert weights.sum(-1)[0].max() < 0.99999
        assert weights[1, ..., 14:].abs().max() == 0  # padding


@pytest.mark.parametrize("family", [*INTERFACE, "t5"])
@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
def test_an_implementation_without_masks_is_refused_before_anything_is_touched(family, implementation):
    model = tiny.model(family)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    model.config._attn_implementation = implementation
    with pytest.raises(BackboneError, match=f"attn_implementation='{implementation}' cannot carry an adapter"):
        get_peft_model(model, PrefixTuningConfig())
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_an_implementation_without_masks_is_refused_later_too():
    model = adapted(tiny.model("bert"), "prefix-tuning", task_type="SEQ_CLS")
    model.get_base_model().config._attn_implementation = "flex_attention"
    with pytest.raises(BackboneError, match="cannot carry an adapter"):
        model(**tiny.batch("bert"))


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_lora_of_a_mixed_batch_is_recomputed_with_its_own_names(family, reentrant):
    """In a stack, peft's LoRA layers must know the documents' adapters when a checkpoint runs them again."""

    def config():
        members = [PrefixPropagationConfig(num_virtual_tokens=2, prefix_dropout=0.0), LoraConfig(r=2)]
        return StackConfig(task_type="SEQ_CLS", configs=members)

    model = get_peft_model(tiny.model(family), config())
    model.add_adapter("other", config())
    tiny.shaken(model, scale=0.3)
    for name, parameter in model.named_parameters():  # both train, while one is active
        parameter.requires_grad_(".foretoken." in name or ".lora_" in name)
    inputs = tiny.batch(family) | {"adapter_names": ["other", "default", "other"]}

    def gradients():
        model.zero_grad()
        model(**inputs).loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and ".lora_" in n}

    model.train()
    expected = gradients()
    assert any(g.abs().max() > 0 for n, g in expected.items() if ".other." in n)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    got = gradients()
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
