"""The LoRA of peft's own: where it goes in a model of a known family."""

from __future__ import annotations

import re
from dataclasses import replace

from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.constants import INCLUDE_LINEAR_LAYERS_SHORTHAND
from torch import nn
from transformers.pytorch_utils import Conv1D

from foretoken.backbones import find_backbone
from foretoken.tuner.dimensions import body_of
from foretoken.tuner.limits import check_lora

HEADS = r".*\.(modules_to_save|original_module)(\..*)?"  # the modules that are trained in full, and the frozen ones


def with_targets(lora: LoraConfig, model: nn.Module) -> LoraConfig:
    """Return the LoRA config with the query and value projections as targets, where it names none.

    peft's own defaults lack Longformer, CamemBERT and DistilBERT, and it warns of GPT-2's maps unless told of them.
    """
    if lora.target_modules:
        return lora
    targets = find_backbone(model).projections
    transposed = any(isinstance(m, Conv1D) and path.endswith(targets) for path, m in model.named_modules())
    return replace(lora, target_modules=list(targets), fan_in_fan_out=transposed or lora.fan_in_fan_out)


def outside_heads(lora: LoraConfig, model: nn.Module) -> LoraConfig:
    """Return the LoRA config without the modules that are trained in full already; a file could not hold both."""
    inside = [path for path, _ in model.named_modules() if re.fullmatch(HEADS, path)]
    everything = lora.target_modules == INCLUDE_LINEAR_LAYERS_SHORTHAND
    if not any(everything or check_target_module_exists(lora, path) for path in inside):
        return lora
    given = lora.exclude_modules or []
    others = [given] if isinstance(given, str) else [rf"(.*\.)?{re.escape(name)}" for name in given]
    return replace(lora, exclude_modules="|".join(f"({pattern})" for pattern in (*others, HEADS)))


def completed_lora(lora: LoraConfig, model: nn.Module) -> LoraConfig:
    """Return a LoRA config that trains the same head as foretoken's own methods do, so that they compare.

    Raises:
        ConfigError: its regular expressions cannot be matched, or it would not fit into memory.
    """
    head = find_backbone(model).head_names(model, body_of(model))
    trained = list(dict.fromkeys([*(lora.modules_to_save or []), *head])) or None
    completed = replace(with_targets(lora, model), modules_to_save=trained)
    check_lora(completed, model)
    return completed
