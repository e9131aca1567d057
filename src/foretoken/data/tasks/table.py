"""The built-in tasks: the one table of them, and where their raw data are looked for."""

from __future__ import annotations

import os
from pathlib import Path

from foretoken.data.readers.files import is_there, local_path
from foretoken.data.tasks import arxiv, generation_tasks, long_tasks, ner, qangaroo
from foretoken.data.tasks.base import Task
from foretoken.data.tasks.glue import tasks as glue_tasks
from foretoken.data.tasks.superglue import tasks as superglue_tasks
from foretoken.errors import DataError, did_you_mean

DATA_VARIABLE = "FORETOKEN_DATA"


_FAMILIES = (
    long_tasks.TASKS,
    arxiv.TASKS,
    qangaroo.TASKS,
    glue_tasks.TASKS,
    superglue_tasks.TASKS,
    ner.TASKS,
    generation_tasks.TASKS,
)
TASKS: dict[str, Task] = {task.name: task for family in _FAMILIES for task in family}


def get_task(name: str) -> Task:
    """Return a task by name.

    Raises:
        DataError: no such task; the message lists them.
    """
    if name not in TASKS:
        raise DataError(f"no task {name!r}{did_you_mean(name, TASKS)}; the tasks are {', '.join(TASKS)}")
    return TASKS[name]


def raw_place(task: Task, path: str | None = None) -> Path | None:
    """Return where a task's raw data are looked for: ``path``, or $FORETOKEN_DATA/<place>; None if that is not set."""
    folder = os.environ.get(DATA_VARIABLE)
    return local_path(path or f"{folder}/{task.place}") if path or folder else None


def find_raw(name: str, path: str | None = None) -> Path:
    """Return where a task's raw data are.

    Raises:
        DataError: they are not there; the message says where it looked and where to get the data.
    """
    task = get_task(name)
    place = raw_place(task, path)
    if place is not None and is_there(place):
        return place
    hub = f", or set path to 'hub' to load {task.hub_name} from the hub" if task.hub_name else ""
    raise DataError(
        f"task {name!r}: the raw data were not found at {place or f'${DATA_VARIABLE}/{task.place} (not set)'}; get "
        f"{task.source}, and name its folder with data.path or put it at ${DATA_VARIABLE}/{task.place}{hub}"
    )
