"""`foretoken tasks`: list the built-in data sets, or everything about one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretoken.options import option
from foretoken_cli.console import described, table
from foretoken_cli.parser import parse

if TYPE_CHECKING:
    from foretoken.data.tasks.base import Task


@dataclass(frozen=True)
class TasksCommand:
    """The command line of `foretoken tasks`."""

    name: str | None = option("show everything about this task", None, positional=True)


def run(words: Sequence[str]) -> int:
    """Print the tasks, or everything that is known about the one that is named."""
    options = parse(TasksCommand, "tasks", words, described(__doc__))
    from foretoken.data.tasks.table import TASKS, get_task

    if options.name is not None:
        table(("", options.name), _details(get_task(options.name)))
    else:
        rows = [(task.name, task.problem, task.metric, task.title) for task in TASKS.values()]
        table(("task", "problem", "metric", "title"), rows)
    return 0


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
    path = raw_place(task)
    if path is None:
        return f"not looked for: set {DATA_VARIABLE}, for ${DATA_VARIABLE}/{task.place}, or data.path"
    if not path.exists():
        return f"{path}: not there"
    held = shown(sorted(item.name for item in path.iterdir())) if path.is_dir() else "a file"
    return f"{path}: there ({held or 'an empty folder'})"
