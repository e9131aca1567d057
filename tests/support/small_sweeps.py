"""Runs a sweep in small: one step of every variant and every searched value on a tiny model, and the report."""

from functools import cache

from foretoken.backbones import BACKBONES
from foretoken.data.tasks.table import get_task
from foretoken.report.write import write_report
from foretoken.training.recipe.reading import apply_overrides
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.train import train

from support.tiny_families import save_family

DOCUMENTS = 8  # per split of a task
LONGEST = 128  # tokens per document


def smoke(plan, folder):
    """Train and measure each candidate of :func:`covering` for one step, and write the report."""

    @cache
    def tiny(model):
        return str(save_family(folder / model.replace("/", "-"), model_type_of(model), max_position_embeddings=1024))

    for variant in plan.variants:
        for number, params in enumerate(covering(variant)):
            changes = {"output": str(folder / "runs"), "name": f"{variant.name}-{number}"}
            train(small_recipe(plan, variant, params, changes | {"model": tiny(variant.values["model"])}))
    write_report([folder / "runs"], folder / "report", average=plan.config.average)


def covering(variant):
    """Yield the fewest candidates that together have every value of every searched field; of ranges, their ends."""
    most = max((len(values.ends) for values in variant.space.values()), default=1)
    for number in range(most):
        yield {field: values.ends[min(number, len(values.ends) - 1)] for field, values in variant.space.items()}


def small_recipe(plan, variant, params, changes):
    """Return the recipe of a candidate with other sizes; the method and what is measured stay."""
    recipe = plan.recipe(variant, params, *variant.repeats[0])
    changes |= {
        "max_length": min(recipe.max_length or LONGEST, LONGEST),
        "training.max_steps": 1,
        "training.gradient_accumulation_steps": 1,
        "training.early_stopping_patience": None,
        "training.eval_every": "epoch",
        "training.num_threads": 1,
        "training.seed": variant.seeds[0],
    }
    if not get_task(recipe.data.task).needs_raw:  # documents in the place of raw data are made up, and few
        changes |= {f"data.max_{split}": DOCUMENTS for split in ("train", "validation", "test")}
    if recipe.lengthen is not None:
        changes |= {"lengthen.max_length": LONGEST, "lengthen.attention_window": 32}
    if recipe.generation is not None:
        changes |= {"generation.max_new_tokens": 8, "generation.max_target_tokens": 32}
    return build_recipe(apply_overrides(dict(variant.values), params | changes))


def model_type_of(name):
    """Return the family of a model by its name."""
    plain = _plain(name.rpartition("/")[2])
    return max((model_type for model_type in BACKBONES if _plain(model_type) in plain), key=len)


def _plain(name):
    return "".join(letter for letter in name.lower() if letter.isalnum())
