"""The operations of a layer, against PyTorch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import RobertaConfig
from transformers.models.roberta.modeling_roberta import RobertaLayer

from foretoken.bench.counts.flops import LayerWork, needed, whole

BASE = LayerWork(rows=4096, hidden=768, inner=3072, window=512, num_global=9)


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.fixture
def layer():
    config = RobertaConfig(hidden_size=32, num_attention_heads=4, intermediate_size=80, attn_implementation="eager")
    return RobertaLayer(config).eval().requires_grad_(False)


def test_a_window_over_everything_is_dense_attention(layer):
    work = LayerWork(rows=24, hidden=32, inner=80, window=48, num_global=0)
    x = torch.randn(1, 24, 32, requires_grad=True)
    assert work.forward == counted(lambda: layer(x))
    scores_again = 2 * 24 * 24 * 32
    out = layer(x)
    out = out if isinstance(out, torch.Tensor) else out[0]
    assert work.backward == counted(lambda: out.sum().backward()) + scores_again


def test_the_numbers_of_the_design():
    assert BASE.forward / 1e9 == pytest.approx(64.6, abs=0.06)
    assert (BASE.forward + BASE.backward) / 1e9 == pytest.approx(139, abs=0.1)


def test_twice_the_text_is_twice_the_work():
    double = LayerWork(rows=8192, hidden=768, inner=3072, window=512, num_global=9)
    assert double.forward == 2 * BASE.forward
    assert double.backward == 2 * BASE.backward


def test_needed_leaves_out_the_last_layer_and_part_of_the_first():
    assert needed(BASE, 12, backward=False) == 11 * BASE.forward
    assert needed(BASE, 12, backward=True) == 11 * BASE.forward + 10 * BASE.backward + BASE.first_backward
    assert BASE.first_backward < BASE.backward
    assert needed(BASE, 1, backward=True) == whole(BASE, 1, backward=True)
