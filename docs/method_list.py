"""Which method works on which family, and the list that `foretoken methods` prints; `docs/generate.py` writes both.

Whether a method can be on a family is found out by trying, on models without weights, which takes seconds and all of
PyTorch; the command reads a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

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
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.members import Method
from foretoken.methods.rates import HEAD_RATE, TAGGING_HEAD_RATE, own_rate
from foretoken.methods.table import METHODS, make_config
from foretoken.options import types_of
from foretoken.quiet import quiet_transformers
from foretoken.training.baseline.options import PAPER, SUMMARY, TF_IDF, TfidfOptions
from foretoken.training.model.adapter import option_types
from foretoken.tuner.tuner import new_sites

FILE = Path(__file__).parents[1] / "src" / "foretoken_cli" / "method_list.json"
Option: TypeAlias = tuple[str, str, str]
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


def method_list() -> dict[str, Any]:
    """Return the rows of the table of methods, the options of each, and why it cannot be on some families."""
    rows = [(row.name, row.summary, rate_text(row), row.paper) for row in METHODS.values()]
    types = types_of(TfidfOptions)
    options = {
        name: _options((item, option_types(name)[item.name]) for item in option_fields(name)) for name in METHODS
    }
    return {
        "methods": [*rows, (TF_IDF, SUMMARY, "", PAPER)],
        "options": options | {TF_IDF: _options((item, types[item.name]) for item in fields(TfidfOptions))},
        "support": support(),
    }


def option_fields(name: str) -> list[Field[object]]:
    """Return the fields of a method's options, with their help texts."""
    config: Any = METHODS[name].config
    known = option_types(name)
    own = [] if config is None else [item for item in fields(config) if item.name in known]
    ours = [item for item in fields(ForetokenConfig) if item.name in known and item.name not in {o.name for o in own}]
    return own + ours


def text() -> str:
    """Return the file as it has to be."""
    return json.dumps(method_list(), indent=1, ensure_ascii=False) + "\n"


def rate_text(row: Method) -> str:
    """Return the learning rate that `auto` stands for."""
    if row.name == "stack":
        return "of its members"
    rate = own_rate(row.config and make_config(row.name))
    return f"{HEAD_RATE:g}, tagging {TAGGING_HEAD_RATE:g}" if rate is None else f"{rate:g}"


def _options(items: Iterable[tuple[Field[object], object]]) -> list[Option]:
    return [(item.name, _default(item), _meaning(item, wanted)) for item, wanted in items]


def _meaning(item: Field[object], wanted: object) -> str:
    """Return an option's help, and the values it takes where there are only some."""
    choices = ", ".join(str(value) for value in get_args(wanted)) if get_origin(wanted) is Literal else ""
    text = _first_sentence(item.metadata.get("help", ""))
    return f"{text} [{choices}]" if choices else text


def _first_sentence(text: str) -> str:
    """Shorten the paragraphs of peft's own methods."""
    return re.split(r"(?<=[a-z)`'])\. ", " ".join(text.split()), maxsplit=1)[0]


def _default(item: Field[object]) -> str:
    if item.default is not MISSING:
        return str(item.default)
    return str(item.default_factory()) if item.default_factory is not MISSING else "required"
