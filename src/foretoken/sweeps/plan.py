"""The plan of a sweep: its contestants, the fields each is searched over, and the recipe of every run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.errors import ConfigError, RecipeError, quoted
from foretoken.options import Errors
from foretoken.outputs import check_name
from foretoken.sweeps.config import MOST_RUNS, Rule, SweepFile, read_sweep_file
from foretoken.sweeps.naming import axis_labels, candidate_name, digest, safe_name
from foretoken.sweeps.space import Values, read_space, size_of
from foretoken.training.recipe.reading import apply_overrides
from foretoken.training.recipe.recipe import Recipe, build_recipe

MOST_CONTESTANTS = 1000
LONGEST_NAME = 100  # characters of a contestant's before it is cut


@dataclass(frozen=True)
class Contestant:
    """One combination of what is compared: a recipe, and the fields that are searched for it."""

    name: str
    compared: Mapping[str, str]
    values: Mapping[str, Any]
    space: Mapping[str, Values]
    seeds: Sequence[int] = (0,)
    search_seeds: Sequence[int] = (0,)
    metric: str = ""


@dataclass(frozen=True)
class Plan:
    """A sweep file, checked, with its contestants."""

    file: SweepFile
    contestants: tuple[Contestant, ...]

    def recipe(self, contestant: Contestant, params: Mapping[str, Any], seed: int) -> Recipe:
        """Return the recipe of a run."""
        return build_recipe(self._values(contestant, params, seed), source=run_name(contestant, params, seed))

    def recipe_errors(self, contestant: Contestant, params: Mapping[str, Any]) -> Errors:
        """Return what is wrong with the recipe of a candidate."""
        try:
            self.recipe(contestant, params, contestant.seeds[0])
        except RecipeError as error:
            return list(error.errors)
        return []

    def _values(self, contestant: Contestant, params: Mapping[str, Any], seed: int) -> dict[str, Any]:
        place = Path(self.file.folder, run_name(contestant, params, seed))
        own = {"training.seed": seed, "output": str(place.parent), "name": place.name}
        return apply_overrides(dict(contestant.values), dict(params) | own)


def run_name(contestant: Contestant, params: Mapping[str, Any], seed: int) -> str:
    """Return the name of a run, its folder within the sweep's: a function of contestant, parameters and seed."""
    return f"{contestant.name}/{candidate_name(params)}-seed{seed}"


def load_plan(
    path: str | Path, overrides: Sequence[str] = (), *, storage: str | None = None, output: str | None = None
) -> Plan:
    """Read a sweep file and check it whole.

    Raises:
        RecipeError: one message with a line for everything that is wrong.
    """
    errors: Errors = []
    file, base = read_sweep_file(path, overrides, errors, storage=storage, output=output)
    if file is None:
        raise RecipeError.of(str(path), errors)
    contestants = list(_contestants(file, base, errors))
    too_many = _too_many_runs(file, contestants)
    if too_many:
        raise RecipeError.of(str(path), [*errors, *too_many])
    errors.extend(_idle_rules(file, contestants))
    plan = Plan(file, tuple(contestants))
    errors.extend(_value_errors(plan))
    if errors:
        raise RecipeError.of(str(path), errors)
    return replace(plan, contestants=tuple(_with_metric(plan, item) for item in contestants))


def first_params(contestant: Contestant) -> dict[str, Any]:
    """Return the first value of every searched field."""
    return {field: values.ends[0] for field, values in contestant.space.items()}


def _contestants(file: SweepFile, base: dict[str, Any], errors: Errors) -> Iterator[Contestant]:
    axes = [_axis(field, values, errors) for field, values in file.compare.items()]
    if math.prod(map(len, axes)) > MOST_CONTESTANTS:
        sizes = " x ".join(f"{len(axis):,}" for axis in axes)
        errors.append(f"compare: {sizes} combinations; expected at most {MOST_CONTESTANTS:,} contestants")
        return
    shared = read_space(file.search.space, "search.space", errors, strategy=file.search.strategy)
    rules = [_rule_space(file, index, errors) for index in range(len(file.per))]
    start = apply_overrides(base, {"training.metric": file.metric}) if file.metric else base
    names: set[str] = set()
    for chosen in itertools.product(*axes):
        values = _with_group(apply_overrides(start, {field: value for field, _, value in chosen}))
        space, seeds = dict(shared), file.seeds
        for rule, own in zip(file.per, rules, strict=True):
            if _holds(rule, values):
                values = _with_group(apply_overrides(values, dict(rule.set)))
                space, seeds = space | own, rule.seeds or seeds
        labels = {field: label for field, label, _ in chosen}
        name = _unused(labels, values, names)
        yield Contestant(name, labels, values, space, seeds, seeds if file.seeds_for == "all" else seeds[:1])


def _axis(field: str, values: Any, errors: Errors) -> list[tuple[str, str, Any]]:
    if isinstance(values, Mapping) and values:
        errors.extend(_label_errors(field, values))
        return [(field, str(label), value) for label, value in values.items()]
    if not isinstance(values, list) or not values:
        errors.append(f"compare: {field}: got {quoted(values)}, expected a list of values, or a value per name")
        return []
    if len(values) > MOST_CONTESTANTS:
        errors.append(f"compare: {field}: got {len(values):,} values, expected at most {MOST_CONTESTANTS:,}")
        return []
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        errors.append(f"compare: {field}: {quoted(twice)} is given twice")
    return [(field, label, value) for label, value in zip(axis_labels(values), values, strict=True)]


def _label_errors(field: str, labels: Iterable[Any]) -> Iterator[str]:
    """Refuse names of values that cannot be part of a folder's name; what is made from values is safe already."""
    for label in labels:
        try:
            check_name(str(label), what=f"compare: {field}")
        except ConfigError as error:
            yield str(error)


def _too_many_runs(file: SweepFile, contestants: Sequence[Contestant]) -> Errors:
    """Count before anything is made of it: a grid is a product."""
    runs = sum(_most_candidates(file, item) * len(item.seeds) for item in contestants)
    if runs <= MOST_RUNS:
        return []
    largest = max(contestants, key=lambda item: _most_candidates(file, item) * len(item.seeds))
    trials = [f"{file.search.trials:,} trials"] if file.search.trials else _sizes(largest)
    product = " x ".join([f"{len(contestants):,} contestants", *trials, f"{len(largest.seeds):,} seeds"])
    return [f"{product} are {runs:,} runs; expected at most {MOST_RUNS:,}"]


def _most_candidates(file: SweepFile, contestant: Contestant) -> int:
    """Return how many candidates a contestant can have."""
    size = size_of(contestant.space)
    return (file.search.trials or size or 1) if contestant.space else 1


def _sizes(contestant: Contestant) -> list[str]:
    return [f"{values.count:,} of {field}" for field, values in contestant.space.items()]


def _rule_space(file: SweepFile, index: int, errors: Errors) -> dict[str, Values]:
    where = f"per[{index}].space"
    return read_space(file.per[index].space, where, errors, strategy=file.search.strategy)


def _with_group(values: dict[str, Any]) -> dict[str, Any]:
    """Make ``method: lora`` the group that rules can look into."""
    method = values.get("method")
    return values | ({"method": {"name": method}} if isinstance(method, str) else {})


def _holds(rule: Rule, values: Mapping[str, Any]) -> bool:
    def agrees(field: str, wanted: Any) -> bool:
        return _at(values, field) in (wanted if isinstance(wanted, list) else [wanted])

    return all(agrees(field, wanted) for field, wanted in rule.when.items())


def _at(values: Any, field: str) -> Any:
    for part in field.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _unused(labels: Mapping[str, str], values: Mapping[str, Any], names: set[str]) -> str:
    alone = str(_at(values, "method.name") or "run")
    exact = "-".join(labels.values()) if labels else alone
    name = safe_name(exact)
    if name in names or len(exact) > LONGEST_NAME:  # two values whose letters are all replaced by the same, or cut off
        name = f"{name[:LONGEST_NAME]}-{digest(dict(labels))}"
    names.add(name)
    return name


def _idle_rules(file: SweepFile, contestants: Sequence[Contestant]) -> Errors:
    """Refuse a rule for nobody: it is a spelling mistake."""
    return [
        f"per[{index}].when: no contestant has {', '.join(f'{field}: {value}' for field, value in rule.when.items())}"
        for index, rule in enumerate(file.per)
        if contestants and not any(_holds(rule, item.values) for item in contestants)
    ]


def _value_errors(plan: Plan) -> Errors:
    """Try every value of every field once, in every contestant; say each problem once, with where it stands."""
    found: dict[str, None] = {}
    for contestant in plan.contestants:
        for params in _trials(contestant):
            for line in plan.recipe_errors(contestant, params):
                found.setdefault(f"{_place(plan.file, line)}{line}")
    return list(found)


def _trials(contestant: Contestant) -> Iterator[dict[str, Any]]:
    first = first_params(contestant)
    yield first
    for field, values in contestant.space.items():
        yield from (first | {field: value} for value in values.ends[1:])


def _place(file: SweepFile, line: str) -> str:
    """Return the part of the file that a recipe's error speaks of: the one that names the longest field of it."""
    fields = dict.fromkeys(file.search.space, "search.space: ")
    fields |= dict.fromkeys(file.compare, "compare: ")
    for index, rule in enumerate(file.per):
        fields |= dict.fromkeys(rule.set, f"per[{index}].set: ") | dict.fromkeys(rule.space, f"per[{index}].space: ")
    if file.metric:
        fields.setdefault("training.metric", "metric: ")
    named = [field for field in fields if line.startswith((f"{field}:", f"{field}.", f"{field}["))]
    return fields[max(named, key=len)] if named else "recipe: "


def _with_metric(plan: Plan, contestant: Contestant) -> Contestant:
    recipe = plan.recipe(contestant, first_params(contestant), contestant.seeds[0])
    return replace(contestant, metric=recipe.training.metric)
