"""bfloat16: autocast, and frozen weights that are held in it."""

from __future__ import annotations

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from foretoken.tuner.quantised import is_quantised


def hold_frozen(model: PreTrainedModel | PeftModel, dtype: torch.dtype = torch.bfloat16) -> int:
    """Hold the frozen float32 weights of an adapted model in another type; return how many parameters that are.

    The adapter and the trained head stay as they are, and so do buffers and quantised weights. A model without an
    adapter is left alone: its weights are what is trained.
    """
    if not isinstance(model, PeftModel):
        return 0
    kept = _kept(model)
    held = [
        parameter
        for parameter in model.parameters()
        if parameter.dtype == torch.float32
        and not (parameter.requires_grad or is_quantised(parameter) or id(parameter) in kept)
    ]
    for parameter in held:
        parameter.data = parameter.data.to(dtype)
    return sum(parameter.numel() for parameter in held)


_TRAINED = ("lora_", "modules_to_save.", "trainable_tokens_delta.")


def _kept(model: PeftModel) -> set[int]:
    """Return the parameters of adapters and heads, also of a model that is loaded to predict and trains nothing."""
    prefix = getattr(model.base_model, "prefix", "")
    return {
        id(parameter)
        for name, parameter in model.named_parameters()
        if (prefix and prefix in name) or any(part in name for part in _TRAINED)
    }
