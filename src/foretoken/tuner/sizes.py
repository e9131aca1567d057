"""What an adapter would take in memory, counted before anything is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

import torch
from peft import LoraConfig, PeftConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from foretoken.errors import ConfigError
from foretoken.limits import check_memory
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import Dimensions
from foretoken.methods.require import require_int
from foretoken.tuner.config_fill import with_heads
from foretoken.tuner.patterns import check_patterns

BYTES = 4  # of a number in training
SMALLER = "choose smaller values (num_virtual_tokens, rank, r, encoder_hidden_size...), or correct its config"


def check_fits(config: ForetokenConfig, dimensions: Dimensions, model: nn.Module) -> None:
    """Refuse a method whose modules, with the copies of those that it trains in full, would not fit into memory.

    Its modules are built as they always are, but on PyTorch's meta device, where tensors have shapes and no numbers.

    Raises:
        ConfigError: they would not fit, or a number is beyond what a tensor's shape can be.
    """
    try:
        with torch.device("meta"):
            sites = config.build(dimensions)
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:150]
        raise ConfigError(f"{type(config).__name__} has sizes that no tensor can have ({reason}); {SMALLER}") from error
    new = {id(tensor): tensor for module in sites.modules() for tensor in tensors_of(module) if tensor.is_meta}
    numbers = sum(tensor.numel() for tensor in new.values())
    numbers += copied_numbers(with_heads(config, dimensions.heads) or (), model)
    check_memory(numbers * BYTES, what=f"the adapter ({type(config).__name__})", remedy=SMALLER)


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def check_lora(lora: PeftConfig, model: nn.Module) -> None:
    """Refuse a LoRA, or another adapter of peft's, whose names cannot be matched, or that would not fit into memory.

    Raises:
        ConfigError: a regular expression is wrong or takes too long, or the adapter would not fit.
    """
    check_patterns(lora, [path for path, _ in model.named_modules()])
    if isinstance(lora, LoraConfig):
        if lora.megatron_config:
            raise ConfigError("megatron_config makes peft import the module that megatron_core names; remove both")
        numbers = lora_numbers(lora, model) + copied_numbers(lora.modules_to_save or (), model)
        check_memory(numbers * BYTES, what="the adapter (LoraConfig)", remedy=SMALLER)


def lora_numbers(lora: LoraConfig, model: nn.Module) -> int:
    """Return how many numbers a LoRA has: R (D_in + D_out) for every map that it targets."""
    numbers = 0
    kinds: Any = nn.Module
    ranks = lora.rank_pattern or {}
    if lora.target_modules == "all-linear":
        lora, kinds = copy(lora), nn.Linear | Conv1D
        lora.target_modules = ".*"
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() < 2 or not isinstance(module, kinds):
            continue
        if check_target_module_exists(lora, path):
            rank = ranks.get(get_pattern_key(list(ranks), path), lora.r)
            require_int("the rank (r, rank_pattern)", rank, minimum=1)
            numbers += rank * (weight.shape[0] + weight[0].numel())
    return numbers


def copied_numbers(names: Iterable[str], model: nn.Module) -> int:
    """Return how many numbers the modules of these names have, which an adapter trains as copies of its own."""
    wanted = tuple(f".{name}" for name in names)
    found = [module for path, module in model.named_modules() if f".{path}".endswith(wanted)]
    return sum(parameter.numel() for module in found for parameter in module.parameters())
