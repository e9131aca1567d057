"""What a model's config asks for, compared with reason and with the memory before a single layer is made."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import PretrainedConfig

from foretoken.errors import BackboneError, quoted
from foretoken.limits import check_memory

MOST = {  # far beyond any model; a layer is a Python object, and a damaged number of them would be made one by one
    "num_hidden_layers": 1000,
    "num_layers": 1000,
    "num_decoder_layers": 1000,
    "encoder_layers": 1000,
    "decoder_layers": 1000,
    "num_attention_heads": 100_000,
    "hidden_size": 10**7,
    "vocab_size": 10**9,
    "max_position_embeddings": 10**9,
}


def check_model_fits(config: PretrainedConfig, auto: Any, *, source: str) -> None:
    """Refuse a model with impossible sizes, or one that would not fit into memory.

    The model is made on PyTorch's meta device, where tensors have shapes and no numbers, which takes a few hundredths
    of a second.

    Raises:
        BackboneError: a number of the config is none that a model can have.
        ConfigError: the model would not fit.
    """
    for name, most in MOST.items():
        value = getattr(config.get_text_config(), name, None)
        if isinstance(value, list | tuple) or value is None:  # per layer, or not of this family
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BackboneError(
                f"{source}: {name} is {quoted(value)} in config.json, expected a whole number from 1 to {most:,}; "
                "the file is damaged, copy it again"
            )
    if getattr(config, "quantization_config", None) is not None:  # takes less, and only its library knows how much
        return
    with torch.device("meta"):
        model = auto.from_config(deepcopy(config), trust_remote_code=False)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    check_memory(size, what=f"the model {source} (config.json)", remedy="take a smaller model, or correct its config")
