"""From a recipe file and command-line overrides to one nested mapping."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from foretoken.errors import RecipeError, cut, quoted
from foretoken.training.recipe.yaml_text import DEEPEST, LONGEST, parse_yaml


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a recipe file; a missing, unreadable or empty file is a RecipeError."""
    try:
        with path.open(encoding="utf-8") as file:
            values = parse_yaml(file.read(LONGEST + 1))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file") from None
    except (OSError, ValueError) as error:  # also of a path with a NUL, and of bytes that are no UTF-8
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
            raise RecipeError(f"{quoted(word)}: expected an override such as --training.epochs 3")
        key, equals, text = word[2:].partition("=")
        if not equals and (not waiting or waiting[0].startswith("--")):
            raise RecipeError(f"--{key}: needs a value, for example --{key} 3 or --{key}=3")
        found[key] = _value(key, text if equals else waiting.pop(0))
    return found


def apply_overrides(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with every dotted key of `overrides` set; the overrides win."""
    merged = dict(values)
    for key, value in overrides.items():
        path = key.split(".")
        if len(path) > DEEPEST:
            raise RecipeError(f"{quoted(key)}: more than {DEEPEST} groups within each other")
        merged = _set(merged, path, value)
    return merged


def _set(values: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    group = dict(values) if isinstance(values, dict) else {"name": values} if isinstance(values, str) else {}
    first, *rest = path
    group[first] = _set(group.get(first), rest, value) if rest else value
    return group


def _value(key: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--{key}: {quoted(text)} is not valid YAML: {_one_line(error)}") from error


def _one_line(error: yaml.YAMLError) -> str:
    return cut(" ".join(str(error).split()), 300)
