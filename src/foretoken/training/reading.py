"""From a recipe file and command-line overrides to one nested mapping."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from foretoken.errors import RecipeError


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number (as in YAML 1.2) and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"key {twice[0]!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a recipe file; a missing, unreadable or empty file is a RecipeError."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read as a text file: {error}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {_one_line(error)}") from error
    if not isinstance(values, dict):
        found = "empty" if values is None else "not a group of keys"
        raise RecipeError(f"{path}: the recipe is {found}; expected at least the keys model, data and method")
    return values


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Read ``--a.b value`` and ``--a.b=value`` pairs; values are YAML.

    >>> parse_overrides(["--training.learning_rate", "1e-3", "--data.max_train=5"])
    {'training.learning_rate': 0.001, 'data.max_train': 5}
    """
    found: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--") or word == "--":
            raise RecipeError(f"{word!r}: expected an override such as --training.epochs 3")
        key, equals, text = word[2:].partition("=")
        if not equals and (not waiting or waiting[0].startswith("--")):
            raise RecipeError(f"--{key}: needs a value, for example --{key} 3 or --{key}=3")
        found[key] = _value(key, text if equals else waiting.pop(0))
    return found


def apply_overrides(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with every dotted key of `overrides` set; the overrides win."""
    merged = dict(values)
    for key, value in overrides.items():
        merged = _set(merged, key.split("."), value)
    return merged


def _set(values: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    group = dict(values) if isinstance(values, dict) else {"name": values} if isinstance(values, str) else {}
    first, *rest = path
    group[first] = _set(group.get(first), rest, value) if rest else value
    return group


def _value(key: str, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"--{key}: {text!r} is not valid YAML: {_one_line(error)}") from error


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())
