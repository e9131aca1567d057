"""How many parameters each method trains on models of well-known shapes, counted on models without weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from foretoken.errors import ForetokenError
from foretoken.methods import METHODS
from foretoken.quiet import quiet_transformers
from foretoken.training.model.adapter import attach
from foretoken.training.model.load import count_parameters

ROBERTA: dict[str, Any] = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
SHAPES: dict[str, Callable[[], PretrainedConfig]] = {
    "Longformer-base-4096": lambda: transformers.LongformerConfig(
        **(ROBERTA | {"max_position_embeddings": 4098}), attention_window=[512] * 12
    ),
    "RoBERTa-base": lambda: transformers.RobertaConfig(**ROBERTA),
    "RoBERTa-large": lambda: transformers.RobertaConfig(**ROBERTA, **LARGE),
    "BERT-base": lambda: transformers.BertConfig(),
    "BERT-large": lambda: transformers.BertConfig(**LARGE),
    "GPT-2 small": lambda: transformers.GPT2Config(),
    "LED-base-16384": lambda: transformers.LEDConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        attention_window=[1024] * 6,
    ),
    "Llama-3.2-1B": lambda: transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    ),
}


class Row(NamedTuple):
    """One method on one model; ``reason`` says why there is no count."""

    model: str
    method: str
    parameters: int
    share: float
    file_size: int
    reason: str


def rows() -> Iterator[Row]:
    """Yield the methods of the table with their default options, model by model."""
    with quiet_transformers(), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft, on the options that it sets itself
        for name, make in SHAPES.items():
            total = sum(parameter.numel() for parameter in AutoModel.from_config(make()).parameters())
            for method in METHODS:
                if method not in ("stack", "head-only"):
                    yield row(name, method, AutoModel.from_config(make()), total)


def row(name: str, method: str, model: PreTrainedModel, total: int) -> Row:
    """Count one method on a model without a head."""
    try:
        adapted: Any = attach(model, {"name": method})
    except ForetokenError as error:
        return Row(name, method, 0, 0.0, 0, str(error))
    if not isinstance(adapted, PeftModel):
        return Row(name, method, total, 1.0, file_size(dict(adapted.named_parameters())), "")
    count = count_parameters(adapted).adapter
    return Row(name, method, count, count / total, file_size(get_peft_model_state_dict(adapted)), "")


def file_size(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the size in bytes of a safetensors file with these tensors, of which none needs to have values."""
    offset, header = 0, dict[str, Any](__metadata__={"format": "pt"})
    for name, tensor in sorted(tensors.items()):
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + length + -length % 8 + offset
