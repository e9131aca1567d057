"""The built-in tasks: the one table of them, which options each has, and where their raw data are looked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from foretoken.data.options import CLEAN, DataOptions, given_options
from foretoken.data.problems import CLASSIFICATION, TOKEN_CLASSIFICATION
from foretoken.data.readers.files import is_there, local_path
from foretoken.data.tasks import arxiv, coqa, e2e, hyperpartisan, ner, newsgroups, qangaroo, squad, squality, webnlg
from foretoken.data.tasks.base import Task
from foretoken.data.tasks.glue import tasks as glue
from foretoken.data.tasks.pydocs import task as pydocs
from foretoken.data.tasks.superglue import tasks as superglue
from foretoken.errors import DataError, MissingDataError, did_you_mean, quoted

DATA_VARIABLE = "FORETOKEN_DATA"

_TASKS: tuple[Task, ...] = (
    pydocs.TASK,
    newsgroups.TASK,
    hyperpartisan.TASK,
    arxiv.TASK,
    *qangaroo.TASKS,
    *glue.TASKS,
    *superglue.TASKS,
    *ner.TASKS,
    webnlg.TASK,
    e2e.TASK,
    coqa.TASK,
    squality.TASK,
    *squad.TASKS,
)
TASKS: dict[str, Task] = {task.name: task for task in _TASKS}


def get_task(name: str) -> Task:
    """Return a task by name.

    Raises:
        DataError: no such task; the message lists them.
    """
    if name not in TASKS:
        raise DataError(_no_task(name))
    return TASKS[name]


def problem_name(data: DataOptions) -> str:
    """Return the name of what is to be learned: the task's problem, or that of data of one's own."""
    return TASKS[data.task].problem if data.task else data.problem


def task_errors(values: Mapping[str, object]) -> list[str]:
    """Return one line for every data option that does not fit the task, or data of one's own; some may be left out."""
    name = values.get("task") or None
    if name is not None and not isinstance(name, str):
        return []  # which is said where values get their types
    if name is not None and name not in TASKS:
        return [f"task: {_no_task(name)}"]
    task, given = TASKS[name] if name else None, given_options(values)
    errors = []
    if task is not None and not task.needs_raw and "path" in given:
        errors.append(f"path has no use with task {quoted(name)}, which reads installed packages")
    problem = values.get("problem", CLASSIFICATION) if task is None else task.problem
    if "join_documents" in given and problem != TOKEN_CLASSIFICATION:
        errors.append(f"join_documents is for {TOKEN_CLASSIFICATION}, got data for {problem}")
    for owner in TASKS.values():
        own = [option for option in owner.options if option in given and owner is not task]
        errors.extend(f"{option} is for task {owner.name!r}, got task {quoted(name)}" for option in own)
    return errors + _split_errors(values.get("split", CLEAN), task)


def _split_errors(split: object, task: Task | None) -> list[str]:
    allowed = (CLEAN,) if task is None else task.splits
    if split in allowed:
        return []
    owners = [repr(owner.name) for owner in TASKS.values() if split in owner.splits]
    if not owners:
        return [f"split must be one of {', '.join(allowed)}, got {quoted(split)}"]
    return [
        f"split={quoted(split)} exists only for task{'s' if len(owners) > 1 else ''} {', '.join(owners)}, "
        f"got task {quoted(task and task.name)}"
    ]


def raw_place(task: Task, path: str | None = None) -> Path | None:
    """Return where a task's raw data are looked for: ``path``, or $FORETOKEN_DATA/<place>; None if that is not set."""
    folder = os.environ.get(DATA_VARIABLE)
    return local_path(path or f"{folder}/{task.place}") if path or folder else None


def find_raw(task: Task, path: str | None = None) -> Path:
    """Return where a task's raw data are.

    Raises:
        MissingDataError: they are not there; the message says where it looked and where to get the data.
    """
    place = raw_place(task, path)
    if place is not None and is_there(place):
        return place
    hub = f", or set path to 'hub' to load {task.hub_name} from the hub" if task.hub_name else ""
    raise MissingDataError(
        f"task {task.name!r}: the raw data were not found at {place or f'${DATA_VARIABLE}/{task.place} (not set)'}; "
        f"get {task.source}, and name its folder with data.path or put it at ${DATA_VARIABLE}/{task.place}{hub}"
    )


def _no_task(name: str) -> str:
    return f"no task {quoted(name)}{did_you_mean(name, TASKS)}; the tasks are {', '.join(TASKS)}"
