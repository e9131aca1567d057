"""Adapters as a key-value cache of plain transformers, and projections folded away."""

import copy
import json

import pytest
import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model

import foretoken as ft
from foretoken.errors import AdapterError, BackboneError

from support import tiny

P = {"num_virtual_tokens": 3, "prefix_dropout": 0.0}
WIDE = {"mistral": {"sliding_window": None}}
FAMILIES = ("gpt2", "llama", "qwen2", "qwen3", "mistral")
CACHED = {
    "prefix-propagation": lambda **kw: ft.PrefixPropagationConfig(**P, **kw),
    "prefix-propagation, projected": lambda **kw: ft.PrefixPropagationConfig(**P, prefix_projection=True, **kw),
    "prefix-tuning": lambda **kw: ft.PrefixTuningConfig(**P, **kw),
    "prompt-tuning": lambda **kw: ft.PromptTuningConfig(**P, **kw),
    "stack": lambda **kw: ft.StackConfig(
        configs=[ft.PrefixPropagationConfig(**P), ft.PrefixTuningConfig(num_virtual_tokens=2), ft.PromptTuningConfig()],
        **kw,
    ),
}
PROJECTED = {"prefix_projection": True, "encoder_hidden_size": 6}
FOLDED = {
    "prefix-propagation": lambda **kw: ft.PrefixPropagationConfig(**P, **PROJECTED, **kw),
    "prefix-tuning": lambda **kw: ft.PrefixTuningConfig(**P, **PROJECTED, **kw),
    "selective-prefix-tuning": lambda **kw: ft.SelectivePrefixTuningConfig(**P, **PROJECTED, **kw),
    "kernel-propagation": lambda **kw: ft.KernelPropagationConfig(**P, **PROJECTED, alpha_scope="head", **kw),
    "mam-adapter": lambda **kw: ft.MAMAdapterConfig(**P, **PROJECTED, bottleneck_size=4, **kw),
    "stack": lambda **kw: ft.StackConfig(
        configs=[ft.PrefixTuningConfig(**P), LoraConfig(r=2), ft.PrefixPropagationConfig(**P, **PROJECTED)], **kw
    ),
}
NEW = {"do_sample": False, "max_new_tokens": 7, "min_new_tokens": 7, "output_logits": True}
NEW["return_dict_in_generate"] = True


def decoder(family, **changes):
    return tiny.model(family, "CAUSAL_LM", **WIDE.get(family, {}), **changes)


def adapted(family, method, **changes):
    model = get_peft_model(decoder(family, **changes), CACHED[method](task_type="CAUSAL_LM"))
    return tiny.shaken(model).eval()


def batch(side="left"):
    """Return two documents, one of them padded."""
    ids = torch.randint(5, 100, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, slice(0, 4) if side == "left" else slice(7, None)] = 0
    return ids * mask, mask


def assert_generates(plain, given, ids, expected, **options):
    out = plain.generate(ids, **given, **NEW, **options)
    assert torch.equal(out.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(out.logits), torch.stack(expected.logits), atol=3e-5, rtol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", CACHED)
class TestCache:
    @pytest.mark.covering
    def test_a_plain_model_generates_what_the_adapter_does(self, method, family):
        """The plain model has never met foretoken."""
        model, (ids, mask) = adapted(family, method), batch()
        expected = model.generate(ids, attention_mask=mask, **NEW)
        assert_generates(decoder(family), ft.prefix_inputs(model, mask), ids, expected)
        frozen = decoder(family).generate(ids, attention_mask=mask, **NEW)
        assert not torch.allclose(torch.stack(frozen.logits), torch.stack(expected.logits), atol=1e-2)

    @pytest.mark.covering
    def test_logits_with_padding_on_either_side(self, method, family):
        model, plain = adapted(family, method), decoder(family)
        for side in ("left", "right"):
            ids, mask = batch(side)
            with torch.no_grad():
                expected = model(input_ids=ids, attention_mask=mask).logits
                got = plain(input_ids=ids, **ft.prefix_inputs(model, mask)).logits
            torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], atol=3e-5, rtol=2e-5)


def test_scaled_rotations_and_half_precision():
    """YaRN scales what it rotates; the rows' keys have its factor, trained ones do not."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
    values = tiny.CONFIGS["llama"]().to_dict() | {"rope_parameters": yarn}
    torch.manual_seed(1)
    plain = tf.LlamaForCausalLM(tf.LlamaConfig(**values)).eval()
    model = get_peft_model(copy.deepcopy(plain), CACHED["stack"](task_type="CAUSAL_LM"))
    model, (ids, mask) = tiny.shaken(model).eval(), batch()
    expected = model.generate(ids, attention_mask=mask, **NEW)
    assert_generates(plain, ft.prefix_inputs(model, mask), ids, expected)
    half = ft.prefix_cache(model.bfloat16())
    assert {half.layers[0].keys.dtype, half.layers[2].values.dtype} == {torch.bfloat16}


def test_a_named_adapter_or_the_active_one():
    model, (ids, mask) = adapted("llama", "prefix-propagation"), batch()
    model.add_adapter("other", ft.PrefixPropagationConfig(task_type="CAUSAL_LM", num_virtual_tokens=5))
    tiny.shaken(model.eval(), seed=8)
    assert ft.prefix_cache(model).get_seq_length() == 3
    given = ft.prefix_inputs(model, mask, adapter_name="other")
    model.set_adapter("other")
    assert ft.prefix_cache(model).get_seq_length() == 5
    assert_generates(decoder("llama"), given, ids, model.generate(ids, attention_mask=mask, **NEW))
    with pytest.raises(AdapterError, match=r"'otter'.*did you mean 'other'"):
        ft.prefix_cache(model, adapter_name="otter")


class TestWhatNoCacheCanBe:
    @pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
    def test_sliding_windows(self, family):
        model = get_peft_model(tiny.model(family, "CAUSAL_LM"), CACHED["prefix-tuning"](task_type="CAUSAL_LM"))
        with pytest.raises(BackboneError, match=f"{family} model .*sliding window drop the prefix"):
            ft.prefix_cache(model)

    def test_rotations_that_depend_on_the_length(self):
        rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        plain = tf.LlamaForCausalLM(tf.LlamaConfig(**(tiny.CONFIGS["llama"]().to_dict() | {"rope_parameters": rope})))
        model = get_peft_model(plain, CACHED["prefix-tuning"](task_type="CAUSAL_LM"))
        with pytest.raises(BackboneError, match="rotations of the kind 'dynamic'"):
            ft.prefix_cache(model)

    @pytest.mark.parametrize("family", ["bert", "t5"])
    def test_other_models(self, family):
        model = get_peft_model(tiny.model(family), ft.PrefixTuningConfig(task_type=tiny.main_task(family)))
        with pytest.raises(BackboneError, match=f"only a causal decoder.* {family} model"):
            ft.prefix_cache(model)

    @pytest.mark.parametrize(
        "config",
        [
            lambda **kw: ft.SelectivePrefixTuningConfig(**kw),
            lambda **kw: ft.KernelPropagationConfig(**kw),
            lambda **kw: ft.InducerTuningConfig(key_bottleneck_size=2, value_bottleneck_size=2, **kw),
            lambda **kw: ft.AoTPTuningConfig(**kw),
            lambda **kw: ft.MAMAdapterConfig(**kw),
            lambda **kw: ft.PrefixTuningConfig(position_free=True, **kw),
            lambda **kw: ft.PrefixPropagationConfig(position_free=True, **kw),
            lambda **kw: ft.StackConfig(configs=[ft.PrefixTuningConfig(), LoraConfig(r=2)], **kw),
        ],
    )
    def test_methods_that_do_more(self, config):
        model = get_peft_model(decoder("llama"), config(task_type="CAUSAL_LM"))
        with pytest.raises(AdapterError, match=r"'default'.*is more than keys and values"):
            ft.prefix_cache(model)

    def test_no_adapter(self):
        with pytest.raises(AdapterError, match="no adapter of foretoken is active"):
            ft.prefix_cache(decoder("llama"))
        model = adapted("llama", "prefix-tuning")
        with model.disable_adapter(), pytest.raises(AdapterError, match="no adapter of foretoken is active"):
            ft.prefix_cache(model)


@pytest.mark.parametrize("family", ["bert", "longformer", "llama"])
@pytest.mark.parametrize("method", FOLDED)
class TestFold:
    @pytest.mark.covering
    def test_outputs_stay_and_files_shrink(self, method, family, tmp_path):
        model = tiny.shaken(get_peft_model(tiny.model(family), FOLDED[method](task_type="SEQ_CLS"))).eval()
        inputs = tiny.batch(family, labels=False)
        with torch.no_grad():
            expected = model(**inputs).logits
            model.save_pretrained(tmp_path / "before")
            trainable = any(p.requires_grad for name, p in model.named_parameters() if ".foretoken." in name)
            assert ft.fuse(model) is model
            assert torch.equal(model(**inputs).logits, expected)
        names = [name for name, _ in model.named_parameters() if ".foretoken." in name]
        assert not any(".linear." in name or ".shared." in name for name in names)
        assert trainable == any(p.requires_grad for name, p in model.named_parameters() if ".foretoken." in name)
        model.save_pretrained(tmp_path / "after")
        again = PeftModel.from_pretrained(tiny.model(family), tmp_path / "after").eval()
        with torch.no_grad():
            torch.testing.assert_close(again(**inputs).logits, expected, atol=1e-6, rtol=0)
        config = json.loads((tmp_path / "after" / "adapter_config.json").read_text())
        for member in config.get("configs", [config]):
            assert not member.get("prefix_projection")


def test_all_adapters_or_a_named_one():
    model = get_peft_model(tiny.model("bert"), FOLDED["prefix-tuning"](task_type="SEQ_CLS"))
    for name in ("other", "third"):
        model.add_adapter(name, FOLDED["prefix-tuning"](task_type="SEQ_CLS"))
    ft.fuse(model, adapter_name="other")
    assert [model.peft_config[name].prefix_projection for name in ("default", "other", "third")] == [True, False, True]
    ft.fuse(model)
    assert not any(config.prefix_projection for config in model.peft_config.values())
    with pytest.raises(AdapterError, match="nothing to fuse in default, other, third"):
        ft.fuse(model)
    with pytest.raises(AdapterError, match="nothing to fuse in a model without adapters of foretoken"):
        ft.fuse(tiny.model("bert"))
    with pytest.raises(AdapterError, match="no adapter 'fourth' of foretoken"):
        ft.fuse(model, adapter_name="fourth")
