"""Transformers' side of the comparison computes what foretoken's does."""

import pytest
import torch

from foretoken.bench.candidates import failure, gradients, largest, relative, variables_of
from foretoken.bench.models import (
    PREFIX_LENGTH,
    SHAPES,
    TransformersPrefix,
    documents,
    environment,
    logits_of,
    longformer,
    loss_of,
    prefixes,
    propagated,
    roberta,
    step,
)
from foretoken.bench.names import UNPACKED

TINY = SHAPES["tiny"]


def made(**changes):
    return longformer(TINY, layers=3, max_length=64, dtype=torch.float32, device="cpu", **changes)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("lengths", [[40], [56, 9, 31]])
def test_prefix_propagation_by_hand_is_prefix_propagation(lengths, tokens):
    ours = propagated(made(tokens=tokens), tokens=tokens)
    for prefix in prefixes(ours):
        torch.nn.init.normal_(prefix, std=0.5)
    theirs = TransformersPrefix(made(tokens=tokens), prefixes(ours))
    batch = documents(TINY, lengths, "cpu")
    real = batch["attention_mask"].bool() if tokens else slice(None)
    mine, its = step(ours, batch)[real], step(theirs, batch)[real]
    assert its.std() > 0
    assert relative(mine, its) < 1e-4
    assert all(relative(gradients(ours)[name], value) < 1e-4 for name, value in gradients(theirs).items())
    assert gradients(theirs)["prefix"].shape == (3, PREFIX_LENGTH, TINY.hidden)
    assert len(gradients(theirs)) == (3 if tokens else 5)


def test_the_prefix_matters():
    ours = propagated(made())
    batch = documents(TINY, [40], "cpu")
    before = logits_of(ours, batch)
    for prefix in prefixes(ours):
        torch.nn.init.normal_(prefix, std=1.0)
    assert largest(logits_of(ours, batch), before) > 1e-5


def test_models_have_the_same_weights_every_time():
    for make in (longformer, roberta):
        one, other = (make(TINY, layers=1, max_length=32, dtype=torch.float32, device="cpu") for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_documents_are_padded_and_begin_with_cls():
    batch = documents(TINY, [5, 3], "cpu")
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["input_ids"][:, 0].tolist() == [0, 0]
    assert batch["input_ids"][1, 3:].tolist() == [1, 1]
    assert (batch["input_ids"][0, 1:] > 1).all()


def test_the_loss_of_tokens_is_of_real_ones():
    logits = torch.randn(2, 3, 2)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    changed = logits.clone()
    changed[1, 1:] = 9.0
    assert loss_of(logits, mask) == loss_of(changed, mask)


def test_a_large_difference_is_a_failure():
    near, far = {"outputs": 1e-6, "gradients_relative": 1.0}, {"outputs": 1e-6, "gradients": 2e-4}
    assert failure({"foretoken, step": near}) is None
    assert "gradients differ by 2.0e-04" in failure({"a": near, "foretoken, step": far})
    assert failure({"a": {"outputs": float("nan")}}) is not None


def test_variables_are_put_back(monkeypatch):
    monkeypatch.setenv("FORETOKEN_PACKING", "1")
    monkeypatch.delenv("FORETOKEN_ATTENTION_ENGINE", raising=False)
    import os

    with environment({**variables_of(UNPACKED), "FORETOKEN_ATTENTION_ENGINE": "block"}):
        assert os.environ["FORETOKEN_PACKING"] == "0"
    assert os.environ["FORETOKEN_PACKING"] == "1"
    assert "FORETOKEN_ATTENTION_ENGINE" not in os.environ
