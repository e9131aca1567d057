"""What a run's folder holds before a command works on it: nothing to go on with, a run that was stopped, or its end."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from foretoken.errors import RecipeError, SaveError
from foretoken.files import JsonObject
from foretoken.training.recipe.recipe import Recipe
from foretoken.training.run.record import FINISHED, checked_record, differing_keys, recipe_to_json, searched
from foretoken.training.run_folder import CHECKPOINTS, is_vacant
from foretoken.training.trainer.checkpoints import last_whole, newest_first, read_state

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fresh:
    """The run begins; the record, if any, is that of one that was stopped before its first checkpoint."""

    record: JsonObject | None = None


@dataclass(frozen=True)
class Resume:
    """The run goes on from a checkpoint."""

    record: JsonObject
    checkpoint: Path


@dataclass(frozen=True)
class Finished:
    """The run is over."""

    record: JsonObject


State: TypeAlias = Fresh | Resume | Finished


def state_of(recipe: Recipe, *, find_rate: bool) -> State:
    """Return what the folder of a recipe's run holds, and say it.

    Raises:
        RecipeError: a run of another recipe, finished or to be gone on with.
        RunRecordError: the record is damaged.
        SaveError: the best weights so far are gone, or the folder holds files and no run.
    """
    folder = recipe.run_folder
    record = checked_record(folder)
    if record is None and not is_vacant(folder):
        raise SaveError(f"{folder} exists and holds no run; choose another `name` or `output`")
    if record is None:
        return Fresh()
    if record["status"] == FINISHED:
        _refuse_other_recipe(recipe, record, find_rate=find_rate)
        log.info("%s is finished and is not repeated; --restart begins anew", folder)
        return Finished(record)
    checkpoint = last_whole(folder / CHECKPOINTS)
    if checkpoint is not None and read_state(checkpoint).get("global_step"):  # before the first step nothing is lost
        _refuse_other_recipe(recipe, record, find_rate=find_rate)
        return Resume(record, checkpoint)
    if checkpoint is None and newest_first(folder / CHECKPOINTS):
        log.warning("%s has no checkpoint that can be used; training begins anew", folder)
    return Fresh(record)


def _refuse_other_recipe(recipe: Recipe, record: JsonObject, *, find_rate: bool) -> None:
    found = differing_keys(record["recipe"], recipe_to_json(recipe))
    if find_rate and searched(record) is None:
        found.append("training.learning_rate: of the recipe in the folder, --find-rate now")
    if found:
        head = f"{recipe.run_folder} holds a run of another recipe; choose another `name`"
        raise RecipeError(f"{head}, or --restart to rename its folder and begin anew", found)
