"""Checkpoints change what is kept, not what comes out."""

import pytest
import torch

from foretoken.training.trainer import memory

from support import tiny
from support.table import adapted


def gradients(model, family, *, checkpointing):
    model.train()
    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model(**tiny.batch(family)).loss.backward()
    if checkpointing:
        model.gradient_checkpointing_disable()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["bert", "longformer", "llama"])
def test_freed_memory_is_given_back_between_checkpointed_layers(family, monkeypatch):
    model = adapted(tiny.model(family), "prefix-propagation", task_type="SEQ_CLS")
    expected = gradients(model, family, checkpointing=True)
    times = []
    monkeypatch.setattr(memory, "give_back", lambda: times.append(len(times)))
    memory.give_back_between_layers(model)
    got = gradients(model, family, checkpointing=True)
    layers = tiny.model(family).config.num_hidden_layers
    assert len(times) >= 2 * layers - 1  # before every layer, and after its gradients but the first one's
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=0, msg=name)
    times.clear()
    model.eval()(**tiny.batch(family))
    assert not times
