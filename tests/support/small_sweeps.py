"""Runs a sweep in small: one step of every variant and every searched value on a tiny model, and the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foretoken.data.tasks.table import get_task
from foretoken.errors import ForetokenError
from foretoken.sweeps.plan import SweepPlan, Variant
from foretoken.sweeps.space import Params
from foretoken.training.options import Recipe
from foretoken.training.recipe.reading import apply_overrides
from foretoken.training.recipe.recipe import build_recipe

from support.tiny_families import save_family

FOLDER = "smoke"  # below the sweep's own
DOCUMENTS = 8  # per split of a task, or one of each class
OWN_DOCUMENTS = 64  # of data whose classes are not known beforehand
LONGEST = 128  # tokens per document


@dataclass(frozen=True)
class Tried:
    """One candidate, and what went wrong with it."""

    run: str
    error: str | None = None


def smoke(plan: SweepPlan) -> list[Tried]:
    """Train and measure each candidate of :func:`covering` for one step, write the report, and return what was tried.

    The runs lie in ``smoke/runs`` of the sweep's folder, the report in ``smoke/report``; what an earlier one left
    is replaced. A candidate that fails does not keep the others from running.
    """
    from foretoken.report.write import write_report
    from foretoken.training.run.train import train

    folder = plan.config.folder / FOLDER
    for part in ("runs", "models"):
        shutil.rmtree(folder / part, ignore_errors=True)

    @cache
    def tiny(model: str) -> str:
        place = folder / "models" / model.replace("/", "-")
        return str(save_family(place, model_type_of(model), max_position_embeddings=1024))

    tried = []
    for variant in plan.variants:
        for number, params in enumerate(covering(variant)):
            name = f"{variant.name}-{number}"
            error = None
            try:
                train(small_recipe(plan, variant, params, name=name, folder=folder / "runs", tiny=tiny))
            except ForetokenError as found:
                error = f"{type(found).__name__}: {found}"
            tried.append(Tried(name, error))
    if any(item.error is None for item in tried):
        write_report([folder / "runs"], folder / "report", average=plan.config.average)
    return tried


def covering(variant: Variant) -> Iterator[Params]:
    """Yield the fewest candidates that together have every value of every searched field; of ranges, their ends."""
    most = max((len(values.ends) for values in variant.space.values()), default=1)
    for number in range(most):
        yield {field: values.ends[min(number, len(values.ends) - 1)] for field, values in variant.space.items()}


def small_recipe(
    plan: SweepPlan,
    variant: Variant,
    params: Params,
    *,
    name: str,
    folder: Path,
    tiny: Callable[[str], str],
) -> Recipe:
    """Return the recipe of a candidate with another model and sizes; the method and what is measured stay."""
    recipe = plan.recipe(variant, params, *variant.repeats[0])
    task = None if recipe.data.task is None else get_task(recipe.data.task)
    most = OWN_DOCUMENTS if task is None else max(DOCUMENTS, len(task.labels))
    documents: Params = {f"data.max_{split}": most for split in ("train", "validation", "test")}
    if recipe.data.folds is not None:  # every document is in the test of one fold
        del documents["data.max_test"]
    if task is not None and task.needs_raw:
        documents = {}  # they are made up, and few
    if recipe.data.folds is not None:
        documents["data.fold"] = recipe.data.fold
    changes = {
        **documents,
        "model": tiny(recipe.model),
        "max_length": min(recipe.max_length or LONGEST, LONGEST),
        "training.max_steps": 1,
        "training.gradient_accumulation_steps": 1,
        "training.early_stopping_patience": None,
        "training.eval_every": "epoch",
        "training.num_threads": 1,
        "output": str(folder),
        "name": name,
    }
    if recipe.lengthen is not None:
        changes |= {"lengthen.max_length": LONGEST, "lengthen.attention_window": 32}
    if recipe.generation is not None:
        changes |= {"generation.max_new_tokens": 8, "generation.max_target_tokens": 32}
    values = apply_overrides(dict(variant.values), params | {"training.seed": variant.seeds[0]})
    return build_recipe(apply_overrides(values, changes), source=name)


def model_type_of(name):
    """Return the family of a model by its name."""
    from foretoken.backbones import BACKBONES

    plain = _plain(name.rpartition("/")[2])
    return max((model_type for model_type in BACKBONES if _plain(model_type) in plain), key=len, default="bert")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
