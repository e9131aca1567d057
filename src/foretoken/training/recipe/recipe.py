"""The recipe, everything a run depends on: read from YAML and flags, checked as a whole, and resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.errors import RecipeError, no_such
from foretoken.options import Errors, Values, build, texts_of, to_dict
from foretoken.training.baseline.options import is_baseline, tfidf_options
from foretoken.training.options import AUTO, Recipe
from foretoken.training.recipe.reading import add_plain_errors, apply_overrides, parse_overrides, read_yaml

if TYPE_CHECKING:
    from peft import PeftConfig


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, apply ``--key value`` overrides, and check the recipe; without one, they are the recipe."""
    return build_recipe(read_values(path, overrides), source=source_of(path))


def read_values(path: str | Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a recipe file with ``--key value`` overrides as plain values; without a file, only the overrides."""
    chosen = parse_overrides(overrides, texts_of(Recipe))
    return with_method_group(apply_overrides({} if path is None else read_yaml(Path(path)), chosen))


def source_of(path: str | Path | None) -> str:
    """Return the name of a recipe in its errors."""
    return "recipe of the flags" if path is None else str(path)


def build_recipe(values: Values, source: str = "recipe") -> Recipe:
    """Build a recipe from nested data; raise one RecipeError that lists every problem."""
    from foretoken.training.recipe.resolve import resolve  # imports torch, as do the checks of names

    errors: Errors = []
    values = with_method_group(values)
    recipe = build(Recipe, values, errors)
    config = _check_names(values, errors)
    add_plain_errors(values, errors)
    if errors or recipe is None:
        raise RecipeError.of(source, errors)
    resolved = resolve(recipe, config)
    object.__setattr__(resolved, "_is_checked", True)  # a changed copy, as of `replace`, has to be checked again
    return resolved


def checked(recipe: Recipe) -> Recipe:
    """Return a recipe checked and with its defaults resolved; one of :func:`build_recipe` is returned as it is."""
    return recipe if recipe._is_checked else build_recipe(to_dict(recipe))


def with_method_group(values: Values) -> dict[str, Any]:
    """Accept ``method: lora`` for ``method: {name: lora}``; TF-IDF needs no model."""
    method = values.get("method")
    method = {"name": method} if isinstance(method, str) else method
    no_model = {"model": ""} if isinstance(method, Mapping) and is_baseline(method) else {}
    return no_model | dict(values) | ({} if method is None else {"method": method})


def _check_names(values: Values, errors: Errors) -> PeftConfig | None:
    """Check the task and its options, and the names of metric and attention engine; return the method's config."""
    from foretoken.attention.attend import engine_errors
    from foretoken.data.tasks.table import task_errors
    from foretoken.metrics import METRICS
    from foretoken.training.model.adapter import read_config

    config = None
    data, method, training = values.get("data"), values.get("method"), values.get("training")
    if isinstance(data, Mapping):
        errors += [f"data: {error}" for error in task_errors(data)]
    if isinstance(method, Mapping):
        if is_baseline(method):
            tfidf_options(method, errors)
        else:
            config = read_config(method, errors)
        if is_baseline(method) and values.get("start_from") is not None:
            errors.append("start_from: method tf-idf is fitted anew; leave it out")
        if is_baseline(method) and values.get("words") is True:
            errors.append("words: method tf-idf is made of them; leave it out")
    if isinstance(training, Mapping):
        metric, engine = training.get("metric"), training.get("attention_engine")
        if isinstance(metric, str) and metric not in (AUTO, *METRICS):
            errors.append(f"training.metric: {no_such('metric', metric, METRICS)}")
        errors += engine_errors(engine) if isinstance(engine, str) else []
    return config
