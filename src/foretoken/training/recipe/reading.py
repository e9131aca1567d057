"""From a YAML file and command-line overrides to plain nested values, and a check of every text and number."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from foretoken.errors import RecipeError, cut, printable, quoted
from foretoken.options import Errors, Values, is_usable
from foretoken.training.recipe.yaml_text import DEEPEST, LONGEST, parse_yaml

_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # tabs and new lines may separate columns
_YAML_TEXT = re.compile(r"""~|null|Null|NULL||"([^"\\]|\\.)*"|'([^']|'')*'""")  # null, or a text in quotes
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # bytes, on Linux
_OF_CLASSES = ("training.class_weights.", "decision.cost.")  # whose keys are names of classes, with any dots
_PATHS = ("model", "output", "data.path", "data.train", "data.validation", "data.test")


def read_yaml(
    path: Path, texts: Collection[str] = (), *, what: str = "recipe", keys: str = "keys model, data and method"
) -> dict[str, Any]:
    """Read a recipe or sweep file; one that is missing, unreadable or empty, or a folder, is a RecipeError.

    See :func:`parse_yaml` for ``texts``.
    """
    try:
        with path.open(encoding="utf-8") as file:
            values = parse_yaml(file.read(LONGEST + 1), texts)
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such {what} file") from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: is a folder, expected a {what} file (YAML)") from None
    except (OSError, ValueError) as error:  # also of a path with a NUL, and of bytes that are no UTF-8
        raise RecipeError(f"{path}: cannot be read as a text file: {error}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {_one_line(error)}") from error
    if not isinstance(values, dict):
        found = "empty" if values is None else "not a group of keys"
        raise RecipeError(f"{path}: the {what} is {found}; expected at least the {keys}")
    return values


def parse_overrides(arguments: Sequence[str], texts: Mapping[str, bool]) -> dict[str, Any]:
    """Read ``--a.b value`` and ``--a.b=value`` pairs; values are YAML but for texts, which are what stands there.

    Args:
        arguments: the words of the command line.
        texts: the keys whose values are texts, and whether they are lists of them (:func:`foretoken.options.texts_of`).

    >>> parse_overrides(["--training.learning_rate", "1e-3", "--data.path=#1.csv"], {"data.path": False})
    {'training.learning_rate': 0.001, 'data.path': '#1.csv'}
    """
    found: dict[str, Any] = {}
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--") or word == "--":
            raise RecipeError(
                f"{quoted(word)}: expected an override such as --training.epochs 3; files stand before the options"
            )
        key, equals, text = word[2:].partition("=")
        if not equals and (not waiting or waiting[0].startswith("--")):
            raise RecipeError(f"--{key}: needs a value, for example --{key} 3 or --{key}=3")
        found[key] = _value(key, text if equals else waiting.pop(0), texts)
    return found


def apply_overrides(values: Values, overrides: Values) -> dict[str, Any]:
    """Return `values` with every dotted key of `overrides` set: a group before the keys within it.

    >>> apply_overrides({}, {"method.r": 4, "method": "lora"})
    {'method': {'name': 'lora', 'r': 4}}
    >>> apply_overrides({"decision": "f1"}, {"decision.cost.sci.med": 5})
    {'decision': {'cost': {'sci.med': 5}}}
    """
    merged = dict(values)
    for key, value in sorted(overrides.items(), key=lambda item: item[0].count(".")):
        of_classes = next((group for group in _OF_CLASSES if key.startswith(group)), "")
        path = [*of_classes.split(".")[:-1], key.removeprefix(of_classes)] if of_classes else key.split(".")
        if len(path) > DEEPEST:
            raise RecipeError(f"{quoted(key)}: more than {DEEPEST} groups within each other")
        merged = _set(merged, path, value)
    return merged


def add_plain_errors(values: object, errors: Errors) -> None:
    """Add the lines of `plain_errors` for keys that have no error yet."""
    said = {line.partition(":")[0] for line in errors}
    errors.extend(line for line in plain_errors(values) if line.partition(":")[0] not in said)


def plain_errors(values: object) -> Errors:
    r"""Return one line for every text, number and path that cannot be used, at any depth and under any key.

    >>> plain_errors({"data": {"path": "mail\0.csv"}})
    ["data.path: got 'mail\\x00.csv', which holds the character '\\x00'"]
    >>> plain_errors({"seeds": [float("nan")]})
    ['seeds[0]: got nan, expected a number between -2^63 and 2^63']
    """
    return [f"{key}: {problem}" for key, value in _leaves(values, "") for problem in _problems(key, value)]


def _set(values: object, path: Sequence[str], value: object) -> dict[str, Any]:
    group = dict(values) if isinstance(values, dict) else {}
    first, *rest = path
    before = group.get(first)
    named = {"name": before} if first == "method" and isinstance(before, str) else before
    group[first] = _set(named, rest, value) if rest else value
    return group


def _value(key: str, text: str, texts: Mapping[str, bool]) -> object:
    if texts.get(key) is False and not _YAML_TEXT.fullmatch(text):
        return text
    try:
        return parse_yaml(text, of_text=key in texts)
    except yaml.YAMLError as error:
        raise RecipeError(f"--{key}: {quoted(text)} is not valid YAML: {_one_line(error)}") from error


def _one_line(error: yaml.YAMLError) -> str:
    return cut(" ".join(str(error).split()), 300)


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            at = f"{key}.{name}" if key else str(name)
            yield from _leaves(item, cut(printable(at), _LONGEST_NAME))
            if isinstance(name, str) and _UNUSABLE.search(name):
                yield cut(printable(at), _LONGEST_NAME), name
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{key}[{index}]")
    else:
        yield key, value


def _problems(key: str, value: object) -> Iterator[str]:
    if isinstance(value, int | float) and not is_usable(value):
        yield f"got {quoted(value)}, expected a number between -2^63 and 2^63"
    if isinstance(value, str):
        found = _UNUSABLE.search(value)
        if found:
            yield f"got {quoted(value)}, which holds the character {found[0]!r}"
        elif key in _PATHS and _is_too_long(value):
            yield f"got {quoted(value)}, which is longer than a path or a name in it can be"


def _is_too_long(path: str) -> bool:
    raw = path.encode()
    return len(raw) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in raw.split(b"/"))
