"""From a recipe's method group to a peft config, and from a model to one that carries it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, get_type_hints

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from foretoken.errors import ConfigError, ForetokenError, did_you_mean
from foretoken.methods import METHODS, option_names
from foretoken.training.typed import Errors, convert, unknown_keys
from foretoken.tuner import completed_lora, use_fast_attention  # registers our methods with peft on the way

TASK_TYPE = "SEQ_CLS"


def method_errors(method: Mapping[str, Any]) -> Errors:
    """Return one line per problem of a recipe's method group."""
    name = method.get("name")
    if not isinstance(name, str):
        return [f"method.name: is required, one of {', '.join(METHODS)}"]
    if name not in METHODS:
        hint = did_you_mean(name, METHODS) or f"; known: {', '.join(METHODS)}"
        return [f"method.name: no method {name!r}{hint}"]
    options = _options(method)
    known = option_types(name)
    errors = unknown_keys(options, known, "method.")
    for key in options.keys() & known.keys():
        convert(options[key], known[key], f"method.{key}", errors)
    return errors or _construction_errors(method)


def option_types(name: str) -> dict[str, Any]:
    """Return the options of a method and their types; what peft fills in itself is left out."""
    config = METHODS[name].config
    if config is None:
        return {}
    hints = _type_hints(config)
    return {option: hints.get(option, Any) for option in option_names(config)}


def build_config(method: Mapping[str, Any]) -> PeftConfig | None:
    """Return the peft config of a recipe's method group; None for full fine-tuning."""
    config = METHODS[method["name"]].config
    if config is None:
        return None
    known = option_types(method["name"])
    options = {key: convert(value, known[key], key, []) for key, value in _options(method).items()}
    return config(task_type=TASK_TYPE, **options)


def attach(model: PreTrainedModel, method: Mapping[str, Any]) -> PreTrainedModel | PeftModel:
    """Return the model with the method's adapter and trained heads; the model itself for full fine-tuning."""
    config = build_config(method)
    if config is None:
        use_fast_attention(model)
        return model
    try:
        if isinstance(config, LoraConfig):
            config = completed_lora(config, model)
        return get_peft_model(model, config)
    except ForetokenError:
        raise
    except ValueError as error:  # peft's own methods do not know every family's modules
        raise ConfigError(f"method {method['name']}: {' '.join(str(error).split())}") from error


def _options(method: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in method.items() if key != "name"}


def _type_hints(config: type[PeftConfig]) -> dict[str, Any]:
    try:
        return get_type_hints(config)
    except NameError:  # a peft config may name types that only a type checker imports
        return {}


def _construction_errors(method: Mapping[str, Any]) -> Errors:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said again, once, when the run builds its config
            build_config(method)
    except (ValueError, TypeError) as error:
        return [f"method: {error}"]
    return []
