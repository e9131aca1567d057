"""Labels of tasks, models and methods, each with the options in which its runs differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foretoken.data.options import FOLD_OPTIONS
from foretoken.options import flatten, is_number
from foretoken.training.baseline.options import method_name

UNKNOWN = "unknown"


class Labels(NamedTuple):
    """The labels of a run's task, model and method, unique among the runs of a report.

    `line` is the method with those options that are no numbers, which figures draw as one line.
    """

    task: str
    model: str
    method: str
    line: str


def labels_of(recipes: Sequence[Mapping[str, Any]], counted: Sequence[bool] | None = None) -> list[Labels]:
    """Return the labels of every recipe; two are equal if and only if all their options are equal.

    Options of a method are compared over all recipes, so that its label is the same on every task; lengths of a
    model are compared within a task, as each task has its own. Options that only recipes have which are not
    `counted` are in no label.

    >>> recipes = [{"method": {"name": "lora", "r": rank}, "model": "minilm"} for rank in (4, 8)]
    >>> [label.method for label in labels_of(recipes)]
    ['lora (r=4)', 'lora (r=8)']
    """
    counted = counted or [True] * len(recipes)
    tasks = _named([("", data_name(_part(recipe, "data")), _data_options(recipe)) for recipe in recipes], counted)
    models = _named(
        [(task, _model_name(recipe), _model_options(recipe)) for task, recipe in zip(tasks, recipes, strict=True)],
        counted,
    )
    chosen = [(method_name(recipe) or UNKNOWN, _part(recipe, "method")) for recipe in recipes]
    methods = _named([("", name, options) for name, options in chosen], counted)
    lines = _named([("", name, _without_numbers(options)) for name, options in chosen], counted)
    return [Labels(*names) for names in zip(tasks, models, methods, lines, strict=True)]


def data_name(data: Mapping[str, Any]) -> str:
    """Return the task of a recipe's data, or the stem of its file.

    >>> data_name({"task": None, "path": "mail/spam.csv"})
    'spam'
    """
    source = str(data.get("task") or data.get("path") or data.get("train") or UNKNOWN)
    return Path(source.removeprefix("hub:")).stem


def identity(values: Any) -> str:
    """Return a text that is the same for equal JSON values only.

    >>> identity({"b": 1, "a": [2]}) == identity({"a": [2], "b": 1})
    True
    """
    return json.dumps(values, sort_keys=True, default=str)


def differing(options: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys that have more than one value, in their first order; null and a missing key are the same.

    >>> differing([{"r": 4, "alpha": 8}, {"r": 8, "alpha": 8}])
    ['r']
    """
    options = list(options)
    keys = dict.fromkeys(key for values in options for key in values)
    return [key for key in keys if len({identity(values.get(key)) for values in options}) > 1]


def shown(options: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return `key=value, ...` of the keys whose value is not null.

    >>> shown({"r": 4, "alpha": None}, ["r", "alpha"])
    'r=4'
    """
    return ", ".join(f"{key}={_value(options[key])}" for key in keys if options.get(key) is not None)


def _without_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(options).items() if not is_number(value)}


def _named(parts: Sequence[tuple[str, str, Mapping[str, Any] | None]], counted: Sequence[bool]) -> list[str]:
    """Return a label for each (scope, name, options), with the options that differ within its scope and name."""
    options = [flatten(chosen or {}) for _, _, chosen in parts]
    alike: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for (scope, name, _), chosen, counts in zip(parts, options, counted, strict=True):
        if counts:
            alike[scope, name].append(chosen)
    keys = {key: differing(group) for key, group in alike.items()}
    added = [
        shown(chosen, keys.get((scope, name), [])) for (scope, name, _), chosen in zip(parts, options, strict=True)
    ]
    return [f"{name} ({extra})" if extra else name for (_, name, _), extra in zip(parts, added, strict=True)]


def _part(recipe: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return recipe.get(name) or {}


def without_fold(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of data that all folds share; options of folds only if there are folds.

    >>> without_fold({"task": "mail", "folds": 5, "fold": 2}), without_fold({"task": "mail", "fold_seed": 0})
    ({'task': 'mail', 'folds': 5}, {'task': 'mail'})
    """
    left_out = ("fold",) if data.get("folds") is not None else FOLD_OPTIONS
    return {key: value for key, value in data.items() if key not in left_out}


def _data_options(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that define the data; the path of a built-in task is not one of them."""
    data = without_fold(_part(recipe, "data"))
    return {key: value for key, value in data.items() if not (key == "path" and data.get("task"))}


def _model_name(recipe: Mapping[str, Any]) -> str:
    """Return a hub name as it is, and of a folder the last part of its path."""
    name = str(recipe.get("model") or UNKNOWN)
    return name if name.count("/") == 1 and not name.startswith(("/", ".", "~")) else Path(name).name


def _model_options(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that define the model."""
    return {name: recipe.get(name) for name in ("model", "max_length", "lengthen")}


def _value(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)
