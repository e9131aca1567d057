"""Longformer's and LED's passes make no tensor of all pairs of tokens; transformers' own results stay what they are."""

import copy

import pytest
import torch
from peft import get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LEDConfig, LEDForConditionalGeneration, LongformerConfig, LongformerForSequenceClassification

import foretoken

TOKENS, WINDOW = 512, 8


class Largest(TorchDispatchMode):
    """Notes the most elements of a tensor that an operation returns, views that take no memory left out."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def longformer():
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = LongformerConfig(**sizes, attention_window=[WINDOW] * 2, max_position_embeddings=600, vocab_size=50)
    return LongformerForSequenceClassification(config).eval()


def led():
    sides = {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in [("attention_heads", 2), ("ffn_dim", 16), ("layers", 1)]
    }
    config = LEDConfig(**sides, d_model=16, attention_window=WINDOW, max_encoder_position_embeddings=600, vocab_size=50)
    return LEDForConditionalGeneration(config).eval()


def batch(model):
    ids = torch.randint(4, 50, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 300:] = 0
    first = torch.zeros_like(ids)
    first[:, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "global_attention_mask": first}
    return inputs | ({"labels": ids[:, :3].contiguous()} if model.config.is_encoder_decoder else {})


@pytest.mark.parametrize("make", [longformer, led])
def test_no_tensor_holds_all_pairs_of_tokens(make):
    torch.manual_seed(0)
    model = make()
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "SEQ_CLS"
    config = foretoken.PrefixPropagationConfig(num_virtual_tokens=4, task_type=task)
    for fast in (foretoken.speed_up(copy.deepcopy(model)), get_peft_model(copy.deepcopy(model), config)):
        with Largest() as largest:
            fast(**batch(model)).logits.sum().backward()
        assert 0 < largest.elements < TOKENS * TOKENS


@pytest.mark.parametrize("make", [longformer, led])
def test_a_model_without_foretoken_reads_the_values_that_it_read_before(make, monkeypatch):
    torch.manual_seed(0)
    model = make()
    foretoken.speed_up(make())  # from now on transformers' own model makes one row, too
    with torch.no_grad():
        after = model(**batch(model)).logits
    from foretoken.backbones.longformer import mask_row

    for file in (mask_row.modeling_longformer, mask_row.modeling_led):
        for name, function in vars(file).items():
            if getattr(function, "__module__", "") == mask_row.__name__:
                monkeypatch.setattr(file, name, function.__wrapped__)
    with Largest() as largest, torch.no_grad():
        before = model(**batch(model)).logits
    assert largest.elements >= TOKENS * TOKENS  # what transformers does without it: the day it does not, we need not
    assert torch.equal(after, before)
