"""Backbones with quantised weights: the type in which adapters compute, and the modules that cannot be trained."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from foretoken.errors import BackboneError
from foretoken.tuner.forward.sites import NAME

COMPUTING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def is_quantised(parameter: nn.Parameter) -> bool:
    """Tell whether a parameter holds codes (bitsandbytes, fp8), or is a quantised tensor of torchao's.

    >>> is_quantised(nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False))
    True
    """
    kind = type(parameter.data).__module__.partition(".")[0]
    return parameter.dtype not in COMPUTING or kind != "torch"


def compute_type(module: nn.Module) -> torch.dtype:
    """Return the type that a frozen module computes in: the type of its first parameter that is not quantised.

    Adapters in it are ignored, as they may be more precise. Without any such parameter: float32.

    >>> compute_type(nn.Linear(2, 2).bfloat16())
    torch.bfloat16
    """
    frozen = (p for name, p in module.named_parameters() if f"{NAME}." not in name and "lora_" not in name)
    return next((p.dtype for p in frozen if not is_quantised(p)), torch.float32)


def check_trainable(model: nn.Module, names: Collection[str]) -> None:
    """Raise BackboneError for a module to be fully trained with quantised weights, which get no gradient."""
    for path, module in model.named_modules():
        named = any(path == name or path.endswith(f".{name}") for name in names)
        if named and any(is_quantised(parameter) for parameter in module.parameters()):
            raise BackboneError(
                f"{path} is to be fully trained, but its weights are quantised and get no gradient; leave it out when "
                f"quantising (transformers: modules_to_not_convert=[{path!r}], bitsandbytes: llm_int8_skip_modules)"
            )
