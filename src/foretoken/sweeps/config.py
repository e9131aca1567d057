"""The options of a sweep file: the compared and the searched fields, and the seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from foretoken.errors import ConfigError, RecipeError, quoted
from foretoken.options import Errors, Values, build, option, texts_of
from foretoken.outputs import check_name, plain_name
from foretoken.training.options import Recipe
from foretoken.training.recipe.reading import add_plain_errors, apply_overrides, parse_overrides, read_yaml

MOST_RUNS = 100_000
MOST_TRIALS = 10_000
OWN_KEYS = ("output", "name", "training.seed")  # keys of a recipe that the sweep sets


@dataclass(frozen=True)
class SearchOptions:
    """The searched fields, and how candidates are proposed."""

    strategy: Literal["grid", "random", "tpe"] = option("how candidates are proposed", "grid")
    trials: int | None = option("candidates per variant; for random and tpe", None, at_least=1, at_most=MOST_TRIALS)
    seed: int = option("seed of the proposals", 0, at_least=0, at_most=2**32 - 1)
    space: Values = option("field of the recipe: its choices, or a range", factory=dict)
    stages: list[list[str]] | None = option(
        "grid: lists of fields that are searched one list after the other, each from the best before", None
    )

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        if self.stages is not None and self.strategy != "grid":
            raise ConfigError(f"stages are searched as grids; leave out stages, or strategy: {self.strategy}")
        if self.strategy == "grid" and self.trials is not None:
            raise ConfigError("a grid runs all its points; leave out trials, or choose random or tpe")
        if self.strategy != "grid" and self.trials is None:
            raise ConfigError(f"{self.strategy} needs trials, the number of candidates")


@dataclass(frozen=True)
class Rule:
    """Values that hold for some variants only."""

    when: Values = option("field of the recipe: the value, or list of values, that it must have")
    set: Values = option("field of the recipe: its value then", factory=dict)
    space: Values = option("fields that are searched then; they win over search.space", factory=dict)
    seeds: list[int] | None = option("seeds then, in place of the sweep's", None)

    def __post_init__(self) -> None:
        """Refuse unusable seeds."""
        _check_seeds(self.seeds)


@dataclass(frozen=True)
class SweepConfig:
    """A comparison: every combination of the values of `compare` is a variant with its own search."""

    recipe: Any = option("the recipe that all runs start from: a file (beside this one) or a group of keys")
    name: str = option("folder of the sweep in `output`; default: the name of the file", "")
    output: str = option("folder that holds the sweeps", "sweeps")
    compare: Values = option("field of the recipe: its values, as a list or by name", factory=dict)
    per: list[Rule] = option("what holds for some variants only", factory=list)
    search: SearchOptions = option("which fields validation chooses", factory=SearchOptions)
    seeds: list[int] = option("seeds of the runs of a candidate", factory=lambda: [0])
    seeds_for: Literal["all", "selected"] = option(
        "which candidates get every seed; selected: the search has the first seed alone", "all"
    )
    folds_for: Literal["all", "selected"] = option(
        "with data.folds: which candidates get every fold; selected: the search has the first fold alone", "all"
    )
    metric: str | None = option("validation metric that chooses; default: the recipe's training.metric", None)
    average: Literal["mean", "median"] = option("what tables of scores show of the seeds, beside ±", "mean")

    def __post_init__(self) -> None:
        """Refuse unusable seeds and names."""
        _check_seeds(self.seeds)
        check_name(self.name, what="name")

    @property
    def folder(self) -> Path:
        """Folder of the sweep."""
        return Path(self.output) / self.name


def _check_seeds(seeds: Sequence[int] | None) -> None:
    if seeds is not None and (not seeds or len(set(seeds)) < len(seeds)):
        raise ConfigError(f"seeds: got {quoted(seeds)}, expected one or more, each once")
    if seeds is not None and not all(0 <= seed < 2**32 for seed in seeds):
        raise ConfigError(f"seeds: got {quoted(seeds)}, expected whole numbers from 0 to 4,294,967,295")


def read_sweep_config(
    path: str | Path, overrides: Sequence[str], errors: Errors, *, output: str | None = None
) -> tuple[SweepConfig | None, dict[str, Any]]:
    """Return the options of a sweep file, and its base recipe as plain values; problems of both go to `errors`."""
    texts = [key for key in texts_of(Recipe) if "." in key]  # only keys in compare and search have dots
    values = {"name": plain_name(Path(path).stem)} | read_yaml(Path(path), texts, what="sweep", keys="key recipe")
    config = build(SweepConfig, values, errors)
    if config is None:  # the rest of the file may have errors too
        wrong = {re.split(r"[:.\[]", line, maxsplit=1)[0] for line in errors}
        config = build(SweepConfig, {key: value for key, value in values.items() if key not in wrong}, [])
    base = _base_recipe(values.get("recipe"), Path(path).parent, errors)
    chosen = parse_overrides(overrides, texts_of(Recipe))
    errors.extend(_override_errors(chosen, values))
    if config is not None and output is not None:
        config = replace(config, output=output)
    add_plain_errors(values, errors)
    return config, apply_overrides(base, chosen)


def _base_recipe(recipe: object, beside: Path, errors: Errors) -> dict[str, Any]:
    if isinstance(recipe, Mapping):
        return dict(recipe)
    if not isinstance(recipe, str):
        if recipe is not None:
            errors.append(f"recipe: got {quoted(recipe)}, expected the name of a recipe file or a group of keys")
        return {}
    try:
        return read_yaml(beside / recipe)
    except RecipeError as error:
        errors.append(f"recipe: {error}")
        return {}


def _override_errors(chosen: Values, values: Values) -> Errors:
    """Refuse overrides of fields that the sweep itself sets in every run."""
    searched = _keys(values, "compare"), _keys(values.get("search"), "space")
    taken = dict.fromkeys(searched[0], "compared") | dict.fromkeys(searched[1], "searched")
    taken |= dict.fromkeys(OWN_KEYS, "set")
    return [f"--{key}: is {taken[key]} by the sweep; change it in the file" for key in chosen if key in taken]


def _keys(values: object, name: str) -> list[str]:
    group = values.get(name) if isinstance(values, Mapping) else None
    return list(group) if isinstance(group, Mapping) else []
