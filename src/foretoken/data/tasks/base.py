"""What a built-in task is: its name, where its data come from, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.data.columns import Columns
from foretoken.data.documents import Corpus
from foretoken.data.problems import CLASSIFICATION
from foretoken.data.readers.hub import read_hub

CLEAN = "clean"  # nothing that is trained on, or selected by, is in the test
OFFICIAL = "official"  # as papers report it, also where that means to select on what is reported

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions
    from foretoken.data.readers.rows import Row


@dataclass(frozen=True)
class HubSource:
    """A copy of a task on the hub; ``read`` makes of it what the task's reader makes of the raw data."""

    name: str
    read: Callable[[Task, DataOptions], Corpus]


@dataclass(frozen=True)
class Task:
    """A built-in task; ``reader`` gets the raw data's path (None without ``needs_raw``).

    Attributes:
        sizes: documents of train, validation and test as the task reads them; a text where that depends on options.
        folder: where the raw data are below the data folder; default: the name.
        metric: what the literature reports and runs select by.
        splits: the values that the option ``split`` may have; the first is the default.
    """

    name: str
    title: str
    summary: str
    metric: str
    labels: tuple[str, ...]
    source: str
    licence: str
    hub: HubSource | None
    reader: Callable[[Path | None, DataOptions], Corpus]
    needs_raw: bool = True
    problem: str = CLASSIFICATION
    sizes: str = ""
    folder: str | None = None
    splits: tuple[str, ...] = (CLEAN,)

    @property
    def hub_name(self) -> str | None:
        """The name of the hub data set with the same documents, if there is one."""
        return self.hub.name if self.hub else None

    @property
    def place(self) -> str:
        """Where the raw data are below the data folder."""
        return self.folder or self.name


def hub_documents(
    name: str,
    config: str | None,
    text_column: str,
    label_column: str,
    check: Callable[[DataOptions], None],
    convert: Callable[[Row], Row | None],
) -> HubSource:
    """Return a hub source of single texts; ``check`` refuses options, ``convert`` reworks a row or drops it."""

    def read(task: Task, options: DataOptions) -> Corpus:
        check(options)
        corpus = read_hub(name, config, Columns(text_column, label_column), convert)
        return Corpus(corpus.splits, list(task.labels))

    return HubSource(name, read)
