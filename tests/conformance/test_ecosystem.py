"""The defects that users of prefix methods meet elsewhere; each must work here.

S1 (checkpointing trains nothing) and S3 (adapter_names ignored) are in test_lifecycle.py and test_invariants.py; S2 and
S6 concern encoder-decoders and sliding-window decoders, which are not supported yet.
"""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig, StackConfig

import tiny
from table import METHODS, adapted

CONFIGS = (PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig)


def logits(model, inputs):
    with torch.no_grad():
        return tiny.first(model.eval()(**inputs))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("config", CONFIGS)
def test_s4_disabling_a_sequence_classifier_works(config, family):
    model = tiny.shaken(get_peft_model(tiny.model(family), config(task_type="SEQ_CLS")))
    inputs = tiny.batch(family)
    with model.disable_adapter():
        assert torch.isfinite(model(**inputs).loss)
        assert model(**inputs).logits.shape == (3, tiny.LABELS)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert"])
@pytest.mark.parametrize("config", CONFIGS)
def test_s5_positions_of_the_text_do_not_shift(config, family):
    """The position embeddings are asked for the same positions with and without the adapter."""
    model = get_peft_model(tiny.model(family), config(task_type="SEQ_CLS", num_virtual_tokens=9))
    asked = []
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == 64:
            module.register_forward_hook(lambda _, args, __: asked.append(args[0]))
    ids = {"input_ids": torch.randint(5, 100, (1, 62))}
    logits(model, ids)
    with model.disable_adapter():
        logits(model, ids)
    assert torch.equal(*asked)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_s7_heads_read_text_rows_only(family):
    """What reaches pooler and head is as long as the text, and is the text's own rows."""
    model = tiny.shaken(get_peft_model(tiny.model(family), PromptTuningConfig(task_type="SEQ_CLS")))
    seen = []
    inner = model.get_base_model()
    inner.base_model.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    inputs = tiny.batch(family, labels=False)
    logits(model, inputs)
    assert seen[0].shape[:2] == inputs["input_ids"].shape
    by_token = tiny.shaken(adapted(tiny.model(family, "FEATURE_EXTRACTION"), "prompt-tuning"))
    assert logits(by_token, inputs).shape[:2] == inputs["input_ids"].shape


HEADS = {  # family: (sequence classification, multiple choice)
    "bert": ({"pooler", "classifier"}, {"pooler", "classifier"}),
    "roberta": ({"classifier"}, {"pooler", "classifier"}),
    "xlm-roberta": ({"classifier"}, {"pooler", "classifier"}),
    "camembert": ({"classifier"}, {"pooler", "classifier"}),
    "electra": ({"classifier"}, {"classifier", "sequence_summary"}),
    "distilbert": ({"classifier", "pre_classifier"}, {"classifier", "pre_classifier"}),
    "longformer": ({"classifier"}, {"pooler", "classifier"}),
    "big_bird": ({"classifier"}, {"pooler", "classifier"}),
    "big_bird, full": ({"classifier"}, {"pooler", "classifier"}),
    "modernbert": ({"head", "classifier"}, {"head", "classifier"}),
    "deberta-v2": ({"pooler", "classifier"}, {"pooler", "classifier"}),
    "mpnet": ({"classifier"}, {"pooler", "classifier"}),
}


@pytest.mark.parametrize("task", ["SEQ_CLS", "MULTIPLE_CHOICE", "TOKEN_CLS", "QUESTION_ANS"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_s8_the_whole_new_head_is_trained_and_saved(method, family, task, tmp_path):
    """Loaded onto a model whose head was drawn anew, the adapter brings its own head along."""
    model = adapted(tiny.model(family, task), method, task_type=tiny.peft_task(task))
    tiny.shaken(model)
    wrapped = {n.rsplit(".", 1)[-1] for n, m in model.named_modules() if hasattr(m, "modules_to_save") and n.count(".")}
    if task in ("SEQ_CLS", "MULTIPLE_CHOICE"):
        assert (
            wrapped & set().union(*HEADS["bert"], *HEADS["distilbert"], *HEADS["electra"], *HEADS["modernbert"])
            == HEADS[family][task == "MULTIPLE_CHOICE"]
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".modules_to_save." in name:
                parameter.add_(0.1)
    inputs = tiny.batch(family, task, labels=False)
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    fresh = tiny.model(family, task)
    body = fresh.base_model
    pretrained = {id(p) for n, p in body.named_parameters() if not n.startswith("pooler")}
    with torch.no_grad():
        for parameter in fresh.parameters():
            if id(parameter) not in pretrained:
                parameter.normal_()  # a new head, as from_pretrained makes one
    again = PeftModel.from_pretrained(fresh, tmp_path)
    torch.testing.assert_close(logits(again, inputs), expected, atol=1e-6, rtol=1e-5)


def test_s8_pretrained_heads_stay_frozen():
    model = adapted(tiny.model("bert", "MASKED_LM"), "prefix-propagation")
    assert {n for n, p in model.named_parameters() if p.requires_grad and ".foretoken." not in n} == set()


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("method", [m for m in METHODS if "prefix" in m or "prompt" in m])
def test_s9_prefixes_resume_report_and_unload(method, family, tmp_path):
    model = adapted(tiny.model(family), method, task_type="SEQ_CLS")
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.model(family), tmp_path, is_trainable=True)
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {
        n for n, p in model.named_parameters() if p.requires_grad
    }
    assert again.get_model_status().active_adapters == ["default"]
    assert not any("foretoken" in n for n, _ in again.unload().named_modules())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_s9_prefix_and_lora_stack(family, tmp_path):
    """One adapter, one file, both trained; peft's own LoRA layers do the LoRA part."""
    config = StackConfig(task_type="SEQ_CLS", configs=[PrefixPropagationConfig(num_virtual_tokens=2), LoraConfig(r=2)])
    model = tiny.shaken(get_peft_model(tiny.model(family), config))
    inputs = tiny.batch(family, labels=False)
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.model(family), tmp_path)
    torch.testing.assert_close(logits(again, inputs), expected, atol=1e-6, rtol=1e-5)
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    assert any("foretoken" in n for n in names)
    assert any("lora_A" in n for n in names)
