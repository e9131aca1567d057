"""bfloat16: the frozen weights are held in it, what is trained stays float32, and the logits are as near as can be."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from foretoken.backbones.longformer.attention import replaced
from foretoken.methods.table import METHODS as NAMES
from foretoken.training.model.adapter import attach
from foretoken.training.model.precision import hold_frozen

from support import tiny
from support.table import METHODS, adapted

FAMILIES = ("bert", "longformer", "llama")


def of_method(method, family, seed=1):
    model = tiny.model(family, seed=seed)
    made = attach(model, {"name": "lora", "r": 2}) if method == "lora" else adapted(model, method, task_type="SEQ_CLS")
    return tiny.shaken(made.eval(), seed=seed)


def logits(model, family, *, autocast):
    inputs = tiny.batch(family, size=24, labels=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model.eval()(**inputs).logits.float()


def distance(one, two):
    return (one - two).abs().mean().item()


@pytest.mark.covering
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["lora", "prefix-propagation", "prefix-tuning", "bitfit", "stack", "head-only"])
def test_logits_are_as_near_to_float32_as_those_of_a_model_in_bfloat16(method, family):
    if method == "bitfit" and family == "llama":
        pytest.skip("it has no biases")
    error = usual = 0.0
    for seed in range(4):
        exact = logits(of_method(method, family, seed), family, autocast=False)
        theirs = logits(of_method(method, family, seed).to(torch.bfloat16), family, autocast=False)
        ours = of_method(method, family, seed)
        assert hold_frozen(ours) > 0
        error += distance(logits(ours, family, autocast=True), exact)
        usual += distance(theirs, exact)
    assert 0 < error < 1.25 * usual


@pytest.mark.parametrize("family", ["bert", pytest.param("longformer", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", [*METHODS, "lora"])
def test_every_method_trains_on_held_weights_in_float32(method, family):
    model = of_method(method, family).train()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    hold_frozen(model)
    for name, parameter in model.named_parameters():
        ours = name in trained or ".foretoken." in name
        assert parameter.dtype == (torch.float32 if ours else torch.bfloat16), name
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**tiny.batch(family)).loss
    loss.backward()
    for name, parameter in model.named_parameters():
        if name in trained:
            assert parameter.grad is None or parameter.grad.dtype == torch.float32
            assert parameter.grad is None or parameter.grad.isfinite().all()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("method", ["lora", "prefix-propagation", "bitfit", "stack"])
def test_a_loaded_adapter_stays_float32_though_nothing_of_it_is_trained(method, tmp_path):
    model = of_method(method, "bert")
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny.model("bert"), tmp_path)
    hold_frozen(loaded)
    saved = {id(p) for name, p in loaded.named_parameters() if p.dtype == torch.float32}
    hold_frozen(model)
    assert len(saved) == sum(p.dtype == torch.float32 for p in model.parameters())
    assert torch.equal(logits(loaded, "bert", autocast=True), logits(model, "bert", autocast=True))


def test_full_fine_tuning_keeps_its_master_weights():
    assert NAMES["full"].config is None
    model = attach(tiny.model("bert"), {"name": "full"})
    assert hold_frozen(model) == 0
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert isinstance(model, AutoModelForSequenceClassification._model_mapping[type(model.config)])


def test_longformers_global_rows_may_come_in_float32_as_autocast_leaves_them_on_a_gpu():
    x, index = torch.zeros(1, 3, 2, dtype=torch.bfloat16), torch.zeros(1, 1, 2, dtype=torch.long)
    made = replaced(x, torch.ones(1, 1, 2), index, torch.ones(1, 1, dtype=torch.bool))
    assert torch.equal(made, torch.tensor([[[1, 1], [0, 0], [0, 0]]], dtype=torch.bfloat16))
