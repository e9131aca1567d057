"""Checkpoints and offloaded activations change where things are kept, not what comes out."""

from contextlib import nullcontext

import pytest
import torch

from foretoken.training.trainer import memory
from foretoken.training.trainer.contexts import OffloadedActivations

from support import tiny
from support.table import METHODS, adapted


def gradients(model, family, *, checkpointing, offload):
    model.train()
    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    context = OffloadedActivations(model) if offload else nullcontext()
    with context:
        loss = model(**tiny.batch(family)).loss
    loss.backward()
    if checkpointing:
        model.gradient_checkpointing_disable()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


BRIEF = ("prefix-propagation", "prefix-tuning, projected", "bitfit", "stack, of every site")
ROWS = [name if name in BRIEF else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


@pytest.mark.covering
@pytest.mark.parametrize("family", ["bert", "longformer"])
@pytest.mark.parametrize("method", ROWS)
def test_gradients_are_the_same_with_checkpoints_and_with_offloading_and_with_both(method, family):
    model = tiny.shaken(adapted(tiny.model(family), method, task_type="SEQ_CLS")).double()
    expected = gradients(model, family, checkpointing=False, offload=False)
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    for checkpointing, offload in ((True, False), (False, True), (True, True)):
        got = gradients(model, family, checkpointing=checkpointing, offload=offload)
        assert got.keys() == expected.keys()
        for name, gradient in got.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12, msg=name)


def test_activations_are_offloaded_and_parameters_stay_where_they_are():
    model = adapted(tiny.model("bert"), "prefix-tuning", task_type="SEQ_CLS")
    model.train()
    context, moved = OffloadedActivations(model), []
    pack = context.pack_hook

    def noted(tensor):
        held = pack(tensor)
        if held is not tensor:
            moved.append(tensor.untyped_storage().data_ptr())
        return held

    context.pack_hook = noted
    with context:
        loss = model(**tiny.batch("bert")).loss
    loss.backward()
    assert len(moved) > 20
    assert not set(moved) & {p.untyped_storage().data_ptr() for p in model.parameters()}


@pytest.mark.parametrize("family", ["bert", "longformer", "llama"])
def test_freed_memory_is_given_back_between_checkpointed_layers(family, monkeypatch):
    model = adapted(tiny.model(family), "prefix-propagation", task_type="SEQ_CLS")
    expected = gradients(model, family, checkpointing=True, offload=False)
    times = []
    monkeypatch.setattr(memory, "give_back", lambda: times.append(len(times)))
    memory.give_back_between_layers(model)
    got = gradients(model, family, checkpointing=True, offload=False)
    layers = tiny.model(family).config.num_hidden_layers
    assert len(times) >= 2 * layers - 1  # before every layer, and after its gradients but the first one's
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0, msg=name)
    times.clear()
    model.eval()(**tiny.batch(family))
    assert not times
