"""How the results of a report were made: versions, hardware, and the recipe of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from foretoken.report.render.table import Cell, Table, words
from foretoken.report.runs.groups import Group, Results, settings


class RecipeText(NamedTuple):
    """A recipe as YAML, and what it is the recipe of."""

    title: str
    text: str


def origin_table(results: Results) -> Table | None:
    """Return versions and hardware, with the number of counted runs that had them; None without a run."""
    found = Counter(
        (part, str(name), str(value))
        for run in results.finished
        for part in ("versions", "hardware")
        for name, value in (run.values.get(part) or {}).items()
        if value is not None
    )
    if not found:
        return None
    rows = tuple(
        (*words(part, name, value), Cell(str(number), number)) for (part, name, value), number in found.items()
    )
    return Table("Versions and hardware", ("", "Name", "Value", "Runs"), rows, names=3)


def protocol_lines(results: Results) -> list[str]:
    """Return what the recipes say of how their scores came about, each once, with the tasks that it is about."""
    tasks: dict[str, list[str]] = {}
    for group in results.groups:
        said = group.first.recipe.get("protocol")
        if said:
            tasks.setdefault(" ".join(str(said).split()), []).append(group.task)
    return [f"Protocol of {', '.join(dict.fromkeys(names))}: {said}" for said, names in tasks.items()]


def recipe_texts(results: Results) -> list[RecipeText]:
    """Return the recipe of every row of the tables."""
    return [RecipeText(_title(group), _yaml(settings(group.first.recipe))) for group in results.chosen]


def _title(group: Group) -> str:
    seeds = ", ".join(str(run.seed) for run in group.runs)
    return f"{group.task}: {group.label}, {group.model} (seeds {seeds})"


def _yaml(recipe: Mapping[str, Any]) -> str:
    """Leave out what is null, as a recipe file does."""
    return yaml.safe_dump(_without_null(recipe), sort_keys=False, allow_unicode=True)


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return value
