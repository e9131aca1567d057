"""The built-in tasks: the one table of them, and where their raw data are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.data import hyperpartisan, newsgroups, pydocs
from foretoken.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from foretoken.data.documents import Corpus
    from foretoken.data.options import DataOptions
    from foretoken.data.rows import Row

DATA_VARIABLE = "FORETOKEN_DATA"


@dataclass(frozen=True)
class HubSource:
    """A copy of a task on the hub: its name, its columns, and what makes its rows those of the raw data."""

    name: str
    config: str | None
    text_column: str
    label_column: str
    check: Callable[[DataOptions], None]
    convert: Callable[[Row], Row | None]


@dataclass(frozen=True)
class Task:
    """A built-in classification task; ``reader`` gets the raw data's path (None without ``needs_raw``)."""

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

    @property
    def hub_name(self) -> str | None:
        """The name of the hub data set with the same documents, if there is one."""
        return self.hub.name if self.hub else None


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="pydocs",
            title="Documentation of scientific Python packages",
            summary="Long documents made from installed docstrings, labelled by topic; names of packages, "
            "modules and topics are masked. Needs no download; the documents follow the installed versions.",
            metric="f1_macro",
            labels=pydocs.LABELS,
            source="the packages that foretoken depends on",
            licence="the documentation's own: BSD-3-Clause and Apache-2.0",
            hub=None,
            reader=pydocs.read,
            needs_raw=False,
        ),
        Task(
            name="20newsgroups",
            title="20 Newsgroups",
            summary="Usenet posts of 1993 in twenty groups; the official split by date, without headers, "
            "signatures and quotes.",
            metric="accuracy",
            labels=newsgroups.LABELS,
            source="20news-bydate.tar.gz, http://qwone.com/~jason/20Newsgroups/",
            licence="no formal licence; distributed for research",
            hub=HubSource(
                "SetFit/20_newsgroups",
                None,
                "text",
                "label_text",
                newsgroups.check_hub,
                newsgroups.from_hub_row,
            ),
            reader=newsgroups.read,
        ),
        Task(
            name="hyperpartisan",
            title="Hyperpartisan News Detection",
            summary="645 news articles judged hyperpartisan or not (SemEval-2019 task 4, by article).",
            metric="f1",
            labels=hyperpartisan.LABELS,
            source="articles- and ground-truth-training-byarticle-20181122.xml, https://zenodo.org/record/1489920",
            licence="CC BY 4.0",
            hub=HubSource(
                "hyperpartisan_news_detection",
                "byarticle",
                "text",
                "hyperpartisan",
                hyperpartisan.check_hub,
                hyperpartisan.from_hub_row,
            ),
            reader=hyperpartisan.read,
        ),
    )
}


def get_task(name: str) -> Task:
    """Return a task by name.

    Raises:
        DataError: no such task; the message lists them.
    """
    if name not in TASKS:
        raise DataError(f"no task {name!r}{did_you_mean(name, TASKS)}; the tasks are {', '.join(TASKS)}")
    return TASKS[name]


def find_raw(name: str, path: str | None = None) -> Path:
    """Return where a task's raw data are: ``path``, or $FORETOKEN_DATA/<name>.

    Raises:
        DataError: none of these exists; the message says where it looked and where to get the data.
    """
    task = get_task(name)
    folder = os.environ.get(DATA_VARIABLE)
    place = Path(path or f"{folder}/{name}").expanduser() if path or folder else None
    if place is not None and place.exists():
        return place
    hub = f", or set path to 'hub' to load {task.hub_name} from the hub" if task.hub_name else ""
    raise DataError(
        f"task {name!r}: the raw data were not found at {place or f'${DATA_VARIABLE}/{name} (not set)'}; get "
        f"{task.source}, and name its folder with data.path or put it at ${DATA_VARIABLE}/{name}{hub}"
    )
