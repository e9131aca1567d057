"""The option `layers`: a method acts at some layers alone, and those below stay the frozen model's."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from foretoken import (
    AoTPTuningConfig,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    StackConfig,
    fuse,
    prefix_cache,
    to_peft,
)
from foretoken.errors import AdapterError, BackboneError, ConfigError
from foretoken.tuner.lora import completed_lora
from foretoken.tuner.lower_layers import first_trained_layer

from support import tiny
from support.table import METHODS, ROWS
from support.tiny import run

LAST = 2  # of the three layers of tiny models


def states_of(model, inputs):
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True).hidden_states


def adapted(family, method, layers, **options):
    config = ROWS[method](task_type=tiny.main_task(family), layers=layers, **options)
    return tiny.shaken(get_peft_model(tiny.model(family), config)).eval()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "head-only"])
def test_nothing_below_the_last_layer_is_trained_or_changed(method):
    inputs = tiny.batch("bert", labels=False)
    expected = states_of(tiny.model("bert").requires_grad_(False), inputs)
    model = adapted("bert", method, [LAST])
    own = [name for name, p in model.named_parameters() if p.requires_grad and ".modules_to_save." not in name]
    assert own
    assert all(f".layer.{LAST}." in name for name in own), own
    assert first_trained_layer(model) == LAST
    found = states_of(model, inputs)
    assert all(torch.equal(*pair) for pair in zip(found[: LAST + 1], expected, strict=False))
    assert not torch.equal(found[LAST + 1], expected[LAST + 1])


@pytest.mark.parametrize("family", ["longformer", "big_bird", "modernbert", "deberta-v2", "mpnet", "llama", "gpt2"])
def test_a_prefix_that_enters_late_leaves_the_states_below_alone(family):
    inputs = tiny.batch(family, labels=False)
    expected = states_of(tiny.model(family), inputs)
    found = states_of(adapted(family, "prefix-propagation", [1, 2]), inputs)
    assert [x.shape for x in found] == [x.shape for x in expected]
    real = inputs["attention_mask"].bool()
    for one, other in zip(found[:2], expected, strict=False):
        torch.testing.assert_close(one[real], other[real], atol=1e-5, rtol=1e-5)
    assert (found[2] - expected[2])[real].abs().max() > 1e-3


def test_an_encoder_as_a_decoder_is_refused():
    """A prefix in its hidden states would see later tokens, and show them to earlier ones."""
    with pytest.raises(BackboneError, match="load it with is_decoder=False"):
        get_peft_model(tiny.model("bert", is_decoder=True), PrefixPropagationConfig())


def test_a_late_prefix_is_that_of_a_model_of_the_upper_layers():
    """Layers 1 and 2 with a prefix do what a model of two layers does for what leaves layer 0."""
    inputs = tiny.batch("bert", "FEATURE_EXTRACTION")
    late = get_peft_model(tiny.model("bert", "FEATURE_EXTRACTION"), ROWS["prefix-propagation"](layers=[1, 2])).eval()
    whole = tiny.model("bert", "FEATURE_EXTRACTION")
    entering = states_of(whole, inputs)[1]
    del whole.encoder.layer[0]
    upper = get_peft_model(whole, ROWS["prefix-propagation"]()).eval()
    tiny.shaken(late), tiny.shaken(upper)
    upper.base_model.model.embeddings.register_forward_hook(lambda *_: entering)
    torch.testing.assert_close(run(late, inputs), run(upper, inputs), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "longformer", "llama", "t5"])
def test_adapters_of_different_layers_mix_in_a_batch(family):
    inputs = tiny.batch(family, labels=False)
    task = tiny.main_task(family)
    model = get_peft_model(tiny.model(family), ROWS["prefix-propagation"](task_type=task, layers="last-1"), "late")
    model.add_adapter("all", ROWS["prefix-propagation, projected"](task_type=task))
    model.add_adapter("list", PrefixPropagationConfig(task_type=task, layers=[1], num_virtual_tokens=5))
    tiny.shaken(model).eval()
    names = ["late", "all", "list"]
    mixed = run(model, inputs, adapter_names=names)
    for row, name in enumerate(names):
        model.set_adapter(name)
        torch.testing.assert_close(mixed[row], run(model, inputs)[row], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("family", ["bert", "llama", "bart"])
def test_members_of_a_stack_share_layers_or_have_their_own(family):
    task = tiny.main_task(family)
    members = [
        PromptTuningConfig(num_virtual_tokens=2, layers=[0], prefix_dropout=0.0),
        PrefixPropagationConfig(num_virtual_tokens=3, prefix_dropout=0.0),
        AoTPTuningConfig(rank=2),
        LoraConfig(r=2),
    ]
    model = get_peft_model(tiny.model(family), StackConfig(configs=members, layers="last-1", task_type=task))
    names = [name for name, p in model.named_parameters() if p.requires_grad and ".modules_to_save." not in name]
    last = [f".{len(stack) - 1}." for stack in tiny_stacks(model)]
    prompts = [name for name in names if "parts.0.prefix" in name and ".0.foretoken." in name]
    assert len(prompts) == 1
    assert all(any(number in name for number in last) for name in names if name not in prompts)
    assert any("lora_A" in name for name in names)
    out = model(**tiny.batch(family))
    out.loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def tiny_stacks(model):
    return [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) > 1]


@pytest.mark.parametrize("method", ["prefix-propagation, projected", "aot-p-tuning, fc", "stack, of every site"])
def test_saved_loaded_and_fused(method, tmp_path):
    inputs = tiny.batch("bert", labels=False)
    model = adapted("bert", method, "last-2")
    expected = run(model, inputs)
    model.save_pretrained(tmp_path / "one")
    again = PeftModel.from_pretrained(tiny.model("bert"), tmp_path / "one").eval()
    assert torch.equal(run(again, inputs), expected)
    fuse(again, tmp_path / "two", dtype=torch.float32)
    torch.testing.assert_close(run(again, inputs), expected, atol=1e-5, rtol=1e-5)
    again.save_pretrained(tmp_path / "two")
    served = PeftModel.from_pretrained(tiny.model("bert"), tmp_path / "two").eval()
    torch.testing.assert_close(run(served, inputs), expected, atol=1e-5, rtol=1e-5)


def test_what_peft_and_a_cache_cannot_hold(tmp_path):
    model = get_peft_model(tiny.model("llama"), PrefixTuningConfig(task_type="SEQ_CLS", layers="last-1"))
    with pytest.raises(AdapterError, match="acts at every layer"):
        to_peft(model, tmp_path)
    with pytest.raises(AdapterError, match="does not act at every layer"):
        prefix_cache(model)
    whole = get_peft_model(tiny.model("llama"), PrefixTuningConfig(task_type="SEQ_CLS", layers=[0, 1, 2]))
    to_peft(whole, tmp_path)
    assert prefix_cache(whole).get_seq_length() == 8


def test_lora_counts_each_stack_from_the_start():
    model = tiny.model("bart")
    assert completed_lora(LoraConfig(task_type="SEQ_CLS", r=2), model, "last-1").layers_to_transform == [1]
    with pytest.raises(ConfigError, match=r"the layers \[1\] and \[\]"):
        completed_lora(LoraConfig(task_type="SEQ_CLS", r=2), model, [1])


@pytest.mark.parametrize("layers", ["last-0", "first-2", [], [1, 1], [-1], [True], ["1"], 3, "last-4x"])
def test_what_names_no_layers(layers):
    with pytest.raises(ConfigError, match="expected all, last-<k>"):
        PrefixTuningConfig(layers=layers)


@pytest.mark.parametrize("layers", ["last-4", [0, 3]])
def test_layers_that_the_model_lacks(layers):
    with pytest.raises(ConfigError, match=r"has 3 layers|are 0 to 2"):
        get_peft_model(tiny.model("bert"), PrefixTuningConfig(layers=layers))
