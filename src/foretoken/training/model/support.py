"""Which method works on which family, found out by trying: no weights are made."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto import modeling_auto

from foretoken.backbones import BACKBONES
from foretoken.errors import ForetokenError
from foretoken.methods import METHODS
from foretoken.methods.base import ForetokenConfig
from foretoken.quiet import quiet_transformers
from foretoken.tuner import new_sites

TASKS = {
    "sequence classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "question answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "multiple choice": modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
    "masked LM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal LM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "seq2seq LM": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}


def support() -> dict[str, dict[str, str]]:
    """Return, by method and family, why the method cannot be there; an empty text where it can."""
    with quiet_transformers(), torch.device("meta"):
        models = {family: small_model(family) for family in BACKBONES}
        return {
            name: {family: reason(name, model) for family, model in models.items()}
            for name in METHODS
            if name != "stack"
        }


def reason(method: str, model: PreTrainedModel) -> str:
    """Return why the method cannot be on a model, or an empty text."""
    config = METHODS[method].config
    if config is None or not issubclass(config, ForetokenConfig):
        return ""  # full fine-tuning, and LoRA on the projections that each family names
    try:
        new_sites(config(), model)
    except ForetokenError as error:
        return str(error)
    return ""


def small_model(family: str) -> PreTrainedModel:
    """Return a model of two layers with a new head: for classification, or for question answering."""
    config = small_config(family)
    classifier = type(config) in AutoModelForSequenceClassification._model_mapping
    auto = AutoModelForSequenceClassification if classifier else AutoModelForQuestionAnswering
    return auto.from_config(config)


def small_config(family: str, **options: object) -> PretrainedConfig:
    """Return a family's default config with two layers."""
    config = AutoConfig.for_model(family, num_hidden_layers=2, **options)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        config.layer_types = list(layer_types)[:2]
    return config


def tasks(family: str) -> Iterator[str]:
    """Yield the tasks for which transformers has a model of this family and that adapters train."""
    causal = [stack.is_causal for stack in BACKBONES[family].stacks]
    for task, models in TASKS.items():
        left_out = {"causal LM": not all(causal), "masked LM": any(causal)}
        if family in models and not left_out.get(task, False):
            yield task
