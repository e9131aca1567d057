"""Short attention in float32 while a CPU trains in bfloat16; anything else is left alone."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from foretoken.training.options import TrainingOptions
from foretoken.training.trainer.contexts import MOST_KEYS, Float32Attention
from foretoken.training.trainer.trainer import RecipeTrainer


def made(queries, keys, dtype=torch.bfloat16, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8))
    return [torch.randn(shape, generator=drawn).to(dtype).requires_grad_() for shape in shapes]


def oracle(query, key, value, mask):
    """Attention in float64, and the gradients of its sum."""
    wide = [x.detach().double().requires_grad_() for x in (query, key, value)]
    scores = wide[0] @ wide[1].transpose(-1, -2) * query.shape[-1] ** -0.5 + mask.double()
    out = torch.softmax(scores, dim=-1) @ wide[2]
    return out.detach(), torch.autograd.grad(out.sum(), wide)


@pytest.mark.parametrize("masked", ["bool", "float"])
def test_short_attention_is_rounded_once(masked):
    inputs = made(5, 9)
    seen = torch.arange(9) < 7
    mask = seen.expand(2, 1, 5, 9) if masked == "bool" else torch.zeros(1, 1, 5, 9).masked_fill(~seen, -1e4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16), Float32Attention():
        out = scaled_dot_product_attention(*inputs, attn_mask=mask)
    expected, gradients = oracle(*inputs, torch.zeros(9).masked_fill(~seen, -1e4))
    assert out.dtype == torch.bfloat16
    # the nearest bfloat16 is at most 2^-8 of the value away; float32 inside adds nothing that can be seen
    assert ((out - expected).abs() <= expected.abs() * 2**-8 * 1.01).all()
    for found, gradient in zip(torch.autograd.grad(out.sum(), inputs), gradients, strict=True):
        assert found.dtype == torch.bfloat16
        assert torch.allclose(found.double(), gradient, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize(
    ("keys", "dtype", "grad", "autocast"),
    [
        (MOST_KEYS + 1, torch.bfloat16, True, True),
        (9, torch.bfloat16, False, True),
        (9, torch.float32, True, False),
        (9, torch.float64, True, False),
    ],
    ids=["long", "no gradient", "float32", "float64"],
)
def test_what_is_not_slow_is_left_alone(keys, dtype, grad, autocast):
    inputs = made(5, keys, dtype)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = scaled_dot_product_attention(*inputs)
        with Float32Attention():
            ours = scaled_dot_product_attention(*inputs)
    assert ours.dtype == plain.dtype
    assert torch.equal(ours, plain)


@pytest.mark.parametrize(
    ("options", "device", "entered"),
    [
        ({"precision": "bf16"}, "cpu", True),
        ({"precision": "bf16"}, "cuda", False),
        ({"precision": "fp32"}, "cpu", False),
        ({"precision": "bf16", "gradient_checkpointing": True}, "cpu", False),
    ],
)
def test_which_runs_use_it(options, device, entered, monkeypatch):
    seen = []
    monkeypatch.setattr(Float32Attention, "__enter__", lambda self: seen.append("in"))
    monkeypatch.setattr(Float32Attention, "__exit__", lambda self, *error: None)
    trainer = RecipeTrainer.__new__(RecipeTrainer)
    trainer.options = TrainingOptions(**options)
    trainer.args = SimpleNamespace(device=torch.device(device))
    trainer.is_in_train = True
    monkeypatch.setattr("transformers.Trainer.compute_loss_context_manager", lambda self: ExitStack())
    with trainer.compute_loss_context_manager():
        assert seen == (["in"] if entered else [])
