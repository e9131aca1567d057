"""bfloat16: autocast, and frozen weights that are held in it."""

from __future__ import annotations

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from foretoken.tuner.forward.quantised import is_quantised

_TRAINED = ("lora_", "modules_to_save.", "trainable_tokens_delta.")  # parts of the names of adapters and heads


def hold_frozen(model: PreTrainedModel | PeftModel, dtype: torch.dtype = torch.bfloat16) -> int:
    """Hold the frozen float32 weights of an adapted model in another type; return how many parameters that are.

    The adapter and the trained head stay as they are, and so do buffers and quantised weights. A model without an
    adapter is left alone: its weights are what is trained.
    """
    if not isinstance(model, PeftModel):
        return 0
    adapters = adapter_parts(model)
    # also of a model that is loaded to predict and trains nothing
    kept = {id(item) for name, item in model.named_parameters() if any(part in name for part in adapters)}
    held = [
        parameter
        for parameter in model.parameters()
        if parameter.dtype == torch.float32
        and not (parameter.requires_grad or is_quantised(parameter) or id(parameter) in kept)
    ]
    for parameter in held:
        parameter.data = parameter.data.to(dtype)
    return sum(parameter.numel() for parameter in held)


def adapter_parts(model: nn.Module) -> tuple[str, ...]:
    """Return what the names of an adapter's and a head's modules and parameters have in them."""
    prefix = getattr(model.base_model, "prefix", "") if isinstance(model, PeftModel) else ""
    return (*_TRAINED, prefix) if prefix else _TRAINED
