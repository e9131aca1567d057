"""How the results of a report were made: versions, hardware, and the recipe of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from foretoken.report.runs.groups import Results, RunGroup, by, settings
from foretoken.report.scores import counted


class RecipeText(NamedTuple):
    """A recipe as YAML, and what it is the recipe of."""

    title: str
    text: str


def made_lines(results: Results) -> list[str]:
    """Return how the scores came about as the recipes say it, with which versions, and on which machines."""
    lines = []
    for said, groups in by(results.groups, lambda group: group.first.recipe.get("protocol")).items():
        if said:
            tasks = ", ".join(dict.fromkeys(group.task for group in groups))
            lines.append(f"Protocol of {tasks}: {' '.join(str(said).split())}")
    for part in ("versions", "hardware"):
        found = Counter(_listed(run.values.get(part) or {}) for run in results.finished)
        lines += [f"{part.capitalize()}: {text} ({counted(number, 'run')})." for text, number in found.items() if text]
    return lines


def recipe_texts(results: Results) -> list[RecipeText]:
    """Return the recipe of every row of the tables."""
    return [RecipeText(_title(group), _yaml(settings(group.first.recipe))) for group in results.chosen]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _title(group: RunGroup) -> str:
    seeds = ", ".join(str(run.seed) for run in group.runs)
    return f"{group.task}: {group.label}, {group.model} (seeds {seeds})"


def _yaml(recipe: Mapping[str, Any]) -> str:
    """Leave out what is null, as a recipe file does."""
    return yaml.safe_dump(_without_null(recipe), sort_keys=False, allow_unicode=True)


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return value
