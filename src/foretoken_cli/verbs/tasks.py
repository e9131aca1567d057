"""`foretoken tasks`: list the built-in data sets, or everything about one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.options import option
from foretoken_cli.console import described, table
from foretoken_cli.parser import parse

if TYPE_CHECKING:
    from foretoken.data.tasks.base import Task

_HEADER = ("task", "title", "problem", "labels", "train / validation / test", "metric", "source", "licence")


@dataclass(frozen=True)
class TasksCommand:
    """The command line of `foretoken tasks`."""

    name: str | None = option("show everything about this task", None, positional=True)


def run(words: Sequence[str]) -> int:
    """Print the table of tasks, or what is known about the one that is named."""
    options = parse(TasksCommand, "tasks", words, described(__doc__))
    from foretoken.data.tasks.table import TASKS, get_task

    if options.name is not None:
        table(("", options.name), _details(get_task(options.name)))
    elif sys.stdout.isatty():
        table(("task", "what it is"), [(task.name, _folded(task)) for task in TASKS.values()])
    else:
        table(_HEADER, [_row(task) for task in TASKS.values()])
    return 0


def _row(task: Task) -> tuple[object, ...]:
    labels = len(task.labels) or None
    return task.name, task.title, task.problem, labels, task.sizes, task.metric, task.source, task.licence


def _folded(task: Task) -> str:
    """Return a row's cells below each other, as eight columns do not fit a terminal."""
    problem = f"{task.problem}, {len(task.labels)} labels" if task.labels else task.problem
    return f"{task.title}\n{problem}; {task.metric}; {task.sizes}\n{task.source}\n{task.licence}\n"


def _details(task: Task) -> list[tuple[str, str]]:
    return [
        ("title", task.title),
        ("what it is", task.summary),
        ("problem", task.problem),
        ("labels", ", ".join(task.labels) or "-"),
        ("train / validation / test", task.sizes),
        ("metric", task.metric),
        ("data.split", ", ".join(task.splits)),
        ("source", task.source),
        ("licence", task.licence),
        ("on the hub", f"{task.hub_name} (data.path: hub)" if task.hub_name else "-"),
        ("raw data", _whereabouts(task)),
    ]


def _whereabouts(task: Task) -> str:
    """Say where the raw data are looked for, and whether they are there."""
    from foretoken.data.documents import shown
    from foretoken.data.tasks.table import DATA_VARIABLE, raw_place

    if not task.needs_raw:
        return "none needed: made from installed packages"
    place = raw_place(task)
    if place is None:
        return f"not looked for: set {DATA_VARIABLE}, for ${DATA_VARIABLE}/{task.place}, or data.path"
    if not place.exists():
        return f"{place}: not there"
    held = shown(sorted(item.name for item in place.iterdir())) if place.is_dir() else "a file"
    return f"{place}: there ({held or 'an empty folder'})"
