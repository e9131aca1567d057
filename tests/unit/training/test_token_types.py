"""The embeddings of token types are trained beside any method by naming their module."""

import pytest
import torch

from foretoken.training.model.adapter import attach

from support import tiny

NAME = "token_type_embeddings"


@pytest.mark.parametrize("method", ["prefix-propagation", "inducer-tuning", "lora"])
@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_they_are_trained_and_saved_beside_the_head(family, method, tmp_path):
    model = attach(tiny.model(family, "SEQ_CLS"), {"name": method, "modules_to_save": [NAME]}, "SEQ_CLS")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any(f"{NAME}.modules_to_save" in name for name in trained)
    assert any("classifier" in name for name in trained)
    ids = torch.tensor([[3, 4, 5, 6]])
    model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    (weight,) = [one for name, one in model.named_parameters() if f"{NAME}.modules_to_save" in name]
    assert weight.grad is not None
    assert weight.grad[0].any()
