"""What a graph holds, and what a call takes."""

import sys

import pytest
import torch
from torch import nn

from foretoken.bench.counts.memory import peak_of, saved_bytes
from foretoken.memory import resident_bytes

MEGABYTE = 2**20


def test_weights_and_inputs_are_not_activations():
    linear, x = nn.Linear(8, 8), torch.randn(4, 8)
    assert saved_bytes(lambda: linear(x)) == 0


def test_frozen_weights_made_into_another_tensor_once_are_not_activations():
    fused = torch.cat([nn.Linear(8, 8).weight.detach()] * 3)
    x = torch.randn(4, 8, requires_grad=True)
    assert saved_bytes(lambda: nn.functional.linear(x * 1.0, fused)) == 0


def test_a_storage_counts_once_whole():
    x = torch.randn(4, 8, requires_grad=True)

    def forward():
        y = x.exp()  # kept by exp, and by both products
        return (y[:2] * y[2:]).sum()

    assert saved_bytes(forward) == 4 * 8 * 4


def test_what_autograd_functions_keep_counts():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.clone())
            return x * x

    x = torch.randn(16, requires_grad=True)
    assert saved_bytes(lambda: Square.apply(x)) == 16 * 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's counters of Linux")
def test_the_peak_of_a_call_is_seen_after_a_higher_one():
    torch.ones(96 * MEGABYTE, dtype=torch.uint8)  # gone again: the peak starts anew
    before = resident_bytes()  # garbage of earlier tests included, which is given back first
    found = peak_of(lambda: torch.ones(48 * MEGABYTE, dtype=torch.uint8).data_ptr(), "cpu")
    assert 40 * MEGABYTE < found["peak"] - found["before"] < 80 * MEGABYTE
    assert found["before"] < before + 16 * MEGABYTE
    assert found["cuda_peak"] is None
