"""From a recipe's method group to a peft config, and from a model to one that carries it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, get_type_hints

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from foretoken.errors import ConfigError, ForetokenError, did_you_mean, quoted
from foretoken.files import JsonObject
from foretoken.methods import METHODS, option_names
from foretoken.options import Errors, convert, unknown_keys
from foretoken.training.tokens.new_tokens import with_trained_rows
from foretoken.tuner import completed_lora, use_fast_attention  # registers our methods with peft on the way

MethodGroup: TypeAlias = Mapping[str, Any]  # `name` and options, as a recipe has them
MEMBERS = "configs"  # the option of a stack that holds methods
NO_MEMBERS = ("stack", "full")


def method_errors(method: MethodGroup, key: str = "method") -> Errors:
    """Return one line per problem of a recipe's method group, or of a member of a stack."""
    name = method.get("name")
    if not isinstance(name, str):
        return [f"{key}.name: is required, one of {', '.join(METHODS)}"]
    if name not in METHODS:
        hint = did_you_mean(name.lower(), METHODS) or f"; known: {', '.join(METHODS)}"
        return [f"{key}.name: no method {quoted(name)}{hint}"]
    options = _options(method)
    known = option_types(name)
    errors = unknown_keys(options, known, f"{key}.")
    for option in options.keys() & known.keys() - {MEMBERS}:
        convert(options[option], known[option], f"{key}.{option}", errors)
    errors += _dropout_errors(options, f"{key}.")
    if MEMBERS in known:
        errors += _members_errors(options.get(MEMBERS), f"{key}.{MEMBERS}")
    return errors or _construction_errors(method, key)


def option_types(name: str) -> dict[str, Any]:
    """Return the options of a method and their types; what peft fills in itself is left out."""
    config: Any = METHODS[name].config
    if config is None:
        return {}
    hints = _type_hints(config)
    return {option: hints.get(option, Any) for option in option_names(config)}


def build_config(method: MethodGroup, task_type: str = "SEQ_CLS") -> PeftConfig | None:
    """Return the peft config of a recipe's method group; None for full fine-tuning."""
    config = METHODS[method["name"]].config
    if config is None:
        return None
    return config(task_type=task_type, **_converted(method))


def attach(
    model: PreTrainedModel, method: MethodGroup, task_type: str = "SEQ_CLS", *, new_tokens: Sequence[int] = ()
) -> PreTrainedModel | PeftModel:
    """Return the model with the method's adapter and trained heads; the model itself for full fine-tuning.

    ``new_tokens`` are the numbers of tokens whose embeddings are trained and saved beside the adapter.
    """
    config = build_config(method, task_type)
    if config is None:
        use_fast_attention(model)
        return model
    config = with_trained_rows(config, model, new_tokens)
    _check_modules_to_save(model, config)
    try:
        if isinstance(config, LoraConfig):
            config = completed_lora(config, model)
        adapted = get_peft_model(model, config)
    except ForetokenError:
        raise
    except ValueError as error:  # peft's own methods do not know every family's modules
        raise ConfigError(f"method {method['name']}: {' '.join(str(error).split())}") from error
    use_fast_attention(model)  # LoRA by itself knows nothing of it; our own methods have it already
    return adapted


def _options(method: MethodGroup) -> JsonObject:
    return {key: value for key, value in method.items() if key != "name"}


def _converted(method: MethodGroup) -> JsonObject:
    """Return the options of a method, or of a stack's members, as the types that their config declares."""
    known = option_types(method["name"])
    options = {key: convert(value, known[key], key, []) for key, value in _options(method).items()}
    if MEMBERS in options:
        members = [_as_group(member) for member in options[MEMBERS]]
        options[MEMBERS] = [{"name": member["name"], **_converted(member)} for member in members]
    return options


def _dropout_errors(options: JsonObject, prefix: str) -> Errors:
    """Refuse what drops everything; peft's own configs take any number."""
    return [
        f"{prefix}{option}: got {quoted(value)}, expected a number from 0 up to, but below, 1"
        for option, value in options.items()
        if "dropout" in option and isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < 1
    ]


def _members_errors(members: object, key: str) -> Errors:
    if not isinstance(members, list | tuple) or not members:
        return [
            f"{key}: got {quoted(members)}, expected a list of methods, e.g. [prefix-propagation, {{name: lora, r: 4}}]"
        ]
    found: Errors = []
    for index, member in enumerate(map(_as_group, members)):
        at = f"{key}[{index}]"
        if not isinstance(member, Mapping):
            found.append(f"{at}: got {quoted(member)}, expected a method's name, or a group with `name` and options")
        elif member.get("name") in NO_MEMBERS:
            found.append(f"{at}.name: {member['name']} cannot be part of a stack")
        else:
            found += method_errors(member, at)
    return found


def _as_group(member: Any) -> Any:
    """Read `lora` as `{name: lora}`, as for the method itself."""
    return {"name": member} if isinstance(member, str) else member


def _check_modules_to_save(model: PreTrainedModel, config: PeftConfig) -> None:
    """Refuse modules that the model does not have: peft passes over them if any other is found."""
    names = {part for path, _ in model.named_modules() for part in path.split(".")}
    for wanted in getattr(config, "modules_to_save", None) or ():
        if not set(wanted.split(".")) <= names:
            raise ConfigError(
                f"method.modules_to_save: the model has no module {quoted(wanted)}{did_you_mean(wanted, names)}"
            )


@cache
def _type_hints(config: type[PeftConfig]) -> dict[str, Any]:
    try:
        return get_type_hints(config)
    except NameError:  # a peft config may name types that only a type checker imports
        return {}


def _construction_errors(method: MethodGroup, key: str) -> Errors:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said again, once, when the run builds its config
            build_config(method)
    except (ValueError, TypeError) as error:
        return [f"{key}: {error}"]
    return []
