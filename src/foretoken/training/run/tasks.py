"""Several tasks on one frozen model: one run each, trained at once, and a record of the whole beside them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import current_thread

from peft import PeftModel

from foretoken.errors import ConfigError
from foretoken.files import JsonObject, write_json
from foretoken.outputs import refuse_foreign
from foretoken.processes import num_processes
from foretoken.training.baseline.options import is_baseline
from foretoken.training.recipe.recipe import Recipe
from foretoken.training.recipe.tasks import PROBLEMS, TasksRecipe
from foretoken.training.run.prepare import Prepared, use_threads
from foretoken.training.run.train import train
from foretoken.training.trainer.joint import Ask, JointPass, Question, train_together
from foretoken.training.trainer.turns import Turns

log = logging.getLogger(__name__)
_SAID = ("problem", "labels", "parameters", "steps", "best", "validation", "test")  # of each run


def train_tasks(tasks: TasksRecipe, *, restart: bool = False, accept_changed: bool = False) -> dict[str, JsonObject]:
    """Train all tasks at once and return their records; each run is as if its task had been trained alone.

    Documents of all tasks share each pass through the frozen model, and those that are done leave it. Runs that are
    finished are not repeated, and killed ones go on.

    Raises:
        ConfigError: a method has no adapter, a task poses another problem, or there are several processes.
        AdapterError: an adapter trains what documents of other tasks read as well.
        SaveError: a file of the result's name is there, and is none.
        ForetokenError: what :func:`foretoken.training.run.train.train` raises.
    """
    _check(tasks)
    name = json.dumps(tasks.name, ensure_ascii=False)
    refuse_foreign(tasks.result, f'{{\n  "name": {name},\n  "status": ')
    start, recipes = time.monotonic(), tasks.recipes
    use_threads(next(iter(recipes.values())).training.num_threads)
    run = partial(_run, restart=restart, accept_changed=accept_changed)
    runs = [Turns[Question, JsonObject](task, partial(run, one)) for task, one in recipes.items()]
    with _tasks_in_the_log(list(recipes)):
        train_together(runs)
    records = {one.name: one.result() for one in runs}
    write_json(tasks.result, _result(tasks, records, time.monotonic() - start))
    return records


def _run(recipe: Recipe, ask: Ask, *, restart: bool, accept_changed: bool) -> JsonObject:
    """Run one task, which waits for the others at every step."""

    def join(prepared: Prepared) -> JointPass:
        problem = prepared.problem.name
        if problem not in PROBLEMS:
            raise ConfigError(f"data: tasks are {', '.join(PROBLEMS)}; got data for {problem}, train them alone")
        if not isinstance(prepared.model, PeftModel):
            raise ConfigError(f"method {recipe.method['name']} has no adapter, so tasks cannot share the model")
        return JointPass(prepared.model, ask)

    return train(recipe, join=join, restart=restart, accept_changed=accept_changed)


def _check(tasks: TasksRecipe) -> None:
    """Refuse what can be seen before any data are read."""
    if num_processes() > 1:
        raise ConfigError(f"tasks are trained by one process, got {num_processes()}; start a single one")
    for task, recipe in tasks.recipes.items():
        if is_baseline(recipe.method) or recipe.method["name"] == "full":
            raise ConfigError(
                f"tasks.{task}.method: {recipe.method['name']} has no adapter, so tasks cannot share the model; "
                "train it alone"
            )


def _result(tasks: TasksRecipe, records: dict[str, JsonObject], seconds: float) -> JsonObject:
    """Return the record of the whole."""
    return {
        "name": tasks.name,
        "status": "finished",
        "recipe": json.loads(json.dumps(tasks.values)),
        "runs": {task: record["name"] for task, record in records.items()},
        "tasks": {task: {key: record.get(key) for key in _SAID} for task, record in records.items()},
        "seconds": seconds,
    }


@contextmanager
def _tasks_in_the_log(names: list[str]) -> Iterator[None]:
    """Say of every line of a task's thread which task it is of."""

    def name_task(record: logging.LogRecord) -> bool:
        task = current_thread().name
        if task in names and not str(record.msg).startswith(f"{task}: "):
            record.msg = f"{task}: {record.msg}"
        return True

    handlers = [*logging.getLogger().handlers, *logging.getLogger("foretoken").handlers]
    for handler in handlers:
        handler.addFilter(name_task)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(name_task)
