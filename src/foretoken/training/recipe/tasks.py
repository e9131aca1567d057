"""A recipe of several tasks on one frozen model: what they share, and what each of them has for itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from foretoken.data.problems import CLASSIFICATION, MULTIPLE_CHOICE, REGRESSION, TOKEN_CLASSIFICATION
from foretoken.errors import RecipeError, quoted
from foretoken.options import Errors, Values, unknown_keys
from foretoken.outputs import plain_name
from foretoken.training.recipe.reading import apply_overrides, parse_overrides, read_yaml
from foretoken.training.recipe.recipe import AUTO, Recipe, build_recipe, with_method_group

TASKS = "tasks"
PROBLEMS = (CLASSIFICATION, REGRESSION, TOKEN_CLASSIFICATION, MULTIPLE_CHOICE)  # that tasks may pose
_SHARED = ("model", "lengthen", "output", "name")  # of all tasks alike
_OF_THE_PASS = (
    "precision",
    "attention_engine",
    "packing",
    "attention_dropout",
    "num_threads",
    "gradient_checkpointing",
    "activation_offload",
    "cache_states",
)
_TASK = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_LONGEST_NAME = 60  # of a recipe that names none, from those of its tasks


@dataclass(frozen=True)
class TasksRecipe:
    """Several runs of one model that are trained at once.

    Attributes:
        name: of the whole.
        recipes: by task, what each of them alone would be.
        values: what was asked for.
    """

    name: str
    recipes: Mapping[str, Recipe]
    values: Values

    @property
    def result(self) -> Path:
        """The file of the whole, beside the runs."""
        return Path(next(iter(self.recipes.values())).output) / f"{self.name}-tasks.json"


def load_tasks(path: str | Path | None, overrides: Sequence[str] = ()) -> TasksRecipe | None:
    """Read a recipe file with the group ``tasks``; None for the recipe of a single run."""
    chosen = parse_overrides(overrides)
    if path is None and not any(key.partition(".")[0] == TASKS for key in chosen):
        return None
    values = apply_overrides({} if path is None else read_yaml(Path(path)), chosen)
    return build_tasks(values, source="recipe of the flags" if path is None else str(path)) if TASKS in values else None


def build_tasks(values: Values, source: str = "recipe") -> TasksRecipe:
    """Build the recipes of all tasks; raise one RecipeError that lists every problem."""
    shared = with_method_group({name: value for name, value in values.items() if name != TASKS})
    groups = values[TASKS]
    if not isinstance(groups, Mapping) or not groups:
        raise RecipeError.of(
            source, [f"tasks: got {quoted(groups)}, expected a group of tasks by name, e.g. {{spam: {{data: ...}}}}"]
        )
    errors = _shared_errors(shared)
    for task, group in groups.items():
        errors += _task_errors(task, group)
    if errors:
        raise RecipeError.of(source, errors)
    name = _name(shared, groups)
    recipes = {task: _recipe(task, shared, group, name, errors) for task, group in groups.items()}
    if errors:
        raise RecipeError.of(source, list(dict.fromkeys(errors)))
    found = {task: recipe for task, recipe in recipes.items() if recipe is not None}
    return TasksRecipe(name, found, values)


def _recipe(task: str, shared: Values, group: Values, name: str, errors: Errors) -> Recipe | None:
    """Return what a task alone would be; what is wrong with it goes to ``errors``."""
    merged = _merged(shared, with_method_group(group)) | {"name": f"{name}-{task}"}
    own = {key for key in group if key in {item.name for item in fields(Recipe)}}
    try:
        return build_recipe(merged)
    except RecipeError as error:
        for line in error.errors:
            errors.append(f"tasks.{task}.{line}" if _key(line) in own or _key(line) not in shared else line)
        return None


def _key(line: str) -> str:
    """Return the first key of a line that names one.

    >>> _key("data.path: is required")
    'data'
    """
    return line.partition(":")[0].partition(".")[0].partition("[")[0]


def _merged(shared: Values, own: Values) -> dict[str, Any]:
    """Return a task's keys laid over those of all; a head, and a method with a name, take the shared one's place."""
    merged = dict(shared)
    for name, value in own.items():
        before = merged.get(name)
        is_new = name == "head" or (name == "method" and isinstance(value, Mapping) and "name" in value)
        is_laid = isinstance(value, Mapping) and isinstance(before, Mapping) and not is_new
        merged[name] = {**before, **value} if is_laid and before is not None else value
    return merged


def _name(shared: Values, groups: Values) -> str:
    given = shared.get("name")
    return given if isinstance(given, str) else plain_name("-".join(map(str, groups))[:_LONGEST_NAME])


def _shared_errors(shared: Values) -> Errors:
    """Check what only all tasks together may have, or may not."""
    training = shared.get("training")
    given = training if isinstance(training, Mapping) else {}
    errors = [
        f"training.{name}: is not for several tasks in one pass; leave it out"
        for name in ("gradient_checkpointing", "activation_offload")
        if given.get(name)
    ]
    if given.get("cache_states", "off") not in ("off", False):
        errors.append("training.cache_states: is not for several tasks in one pass; leave it out")
    if given.get("precision") == AUTO:
        errors.append("training.precision: auto is measured for each run; with tasks say fp32 or bf16")
    data = shared.get("data")
    if isinstance(data, Mapping) and data.get("folds") is not None and data.get("fold") is None:
        errors.append("data.folds: with tasks name one fold, data.fold")
    return errors


def _task_errors(task: object, group: object) -> Errors:
    """Check the name of a task, and which keys it may have."""
    if not isinstance(task, str) or not re.fullmatch(_TASK, task):
        return [f"tasks: got the name {quoted(task)}; expected up to 64 letters, digits, - and _"]
    if not isinstance(group, Mapping):
        return [f"tasks.{task}: got {quoted(group)}, expected a group of keys such as data and method"]
    known = {item.name: item for item in fields(Recipe) if item.name not in _SHARED and "internal" not in item.metadata}
    errors = [
        f"tasks.{task}.{name}: all tasks share it; name it at the top of the recipe"
        for name in _SHARED
        if name in group
    ]
    errors += unknown_keys({name: group[name] for name in group if name not in _SHARED}, known, f"tasks.{task}.")
    training, data = group.get("training"), group.get("data")
    if isinstance(training, Mapping):
        errors += [
            f"tasks.{task}.training.{name}: is of the pass that all tasks share; name it under training"
            for name in _OF_THE_PASS
            if name in training
        ]
    if isinstance(data, Mapping) and data.get("folds") is not None and data.get("fold") is None:
        errors.append(f"tasks.{task}.data.folds: with tasks name one fold, data.fold")
    return errors
