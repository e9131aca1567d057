"""What a built-in task is: its name, where its data come from, and how they are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretoken.data.documents import SPLITS, Corpus, Example, Splits, shown
from foretoken.data.options import CLEAN, DataOptions
from foretoken.data.problems import CLASSIFICATION, PROBLEMS
from foretoken.data.readers.files import entries, is_folder
from foretoken.data.readers.hub import hub_rows
from foretoken.data.readers.rows import UsableRow
from foretoken.errors import ConfigError, MissingDataError

OFFICIAL = "official"  # as papers report it, also where that means to select on what is reported
Reader = Callable[[Path, DataOptions], Splits]
FromRows = Callable[[str, Iterable[UsableRow]], Sequence[Example]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Markers:
    """The new tokens in the texts of a task of generation.

    Attributes:
        source: markers that the source texts hold, the one that begins them first.
        target: the marker before the text to generate.
        end: the marker after it.
    """

    source: tuple[str, ...]
    target: str
    end: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """All markers, each once."""
        return tuple(dict.fromkeys((*self.source, self.target, self.end)))


@dataclass(frozen=True)
class HubSource:
    """A copy of a task on the hub.

    Attributes:
        read: makes of it what the task's reader makes of the raw data.
        lacks: what the raw data have and the copy has not; the log says it.
    """

    name: str
    read: Callable[[DataOptions], Splits]
    lacks: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A built-in task, which is a row of tasks.yaml with what reads its data.

    Attributes:
        metric: what the literature reports and runs select by.
        sizes: documents of train, validation and test as the task reads them; a text where that depends on options.
        reader: returns the published splits, from the folder of the raw data or a file in it.
        hub: the copy on the hub, if there is one.
        labels: the classes or tags, in order.
        needs_raw: whether there are raw data to be named.
        folder: where the raw data are below the data folder; default: the name.
        splits: the values that the option ``split`` may have; the first is the default.
        options: the data options that this task alone has.
        markers: the new tokens in its texts.
        grouped: whether the examples of one ``group`` are also scored together.
        validation: how validation is taken from train, where that is not left to the shared splits.
        fold_group: what folds must not divide, where that is not the ``group`` of an example.
    """

    name: str
    title: str
    summary: str
    metric: str = "accuracy"
    sizes: str
    source: str
    licence: str
    reader: Reader
    hub: HubSource | None = None
    labels: tuple[str, ...] = ()
    problem: str = CLASSIFICATION
    needs_raw: bool = True
    folder: str | None = None
    splits: tuple[str, ...] = (CLEAN,)
    options: tuple[str, ...] = ()
    markers: Markers | None = None
    grouped: bool = False
    validation: Callable[[Sequence[Any], DataOptions], Splits] | None = None
    fold_group: Callable[[Any], str] | None = None

    @property
    def hub_name(self) -> str | None:
        """The name of the hub data set with the same documents, if there is one."""
        return self.hub.name if self.hub else None

    @property
    def place(self) -> str:
        """Where the raw data are below the data folder."""
        return self.folder or self.name

    def read_raw(self, path: Path, options: DataOptions) -> Corpus:
        """Return the corpus of the raw data.

        Raises:
            MissingDataError: a file is missing; the message names it.
            DataError: a file is not usable; the message names file and line.
        """
        return self._corpus(self.reader(path, options), options)

    def read_hub(self, options: DataOptions) -> Corpus:
        """Return the corpus of the copy on the hub.

        Raises:
            ConfigError: there is no such copy.
            DataError: the hub is out of reach, or has other columns.
        """
        if self.hub is None:
            raise ConfigError(
                f"task {self.name!r} has no copy on the hub; get {self.source}, and set path to its folder"
            )
        if self.hub.lacks:
            _log.warning("%s: the hub copy lacks %s", self.name, self.hub.lacks)
        return self._corpus(self.hub.read(options), options)

    def _corpus(self, splits: Splits, options: DataOptions) -> Corpus:
        labels = list(self.labels) if PROBLEMS[self.problem].has_classes else None
        return Corpus(self._arranged(splits, options), labels, self.problem, self.grouped)

    def _arranged(self, splits: Splits, options: DataOptions) -> Splits:
        """Return the splits that the option ``split`` asks for.

        Where the official test set has no public answers, the official dev set is the test, and validation is taken
        from train, here or with other splits that the source lacks. With ``split: official`` the dev set is both, as
        most papers report it.
        """
        if OFFICIAL not in self.splits:
            return splits
        train, dev = splits["train"], splits["validation"]
        if options.split == OFFICIAL:
            _log.warning(
                "%s: split 'official' selects on the official dev set and reports it too: its scores are optimistic; "
                "split 'clean' takes validation from train",
                self.name,
            )
            return {"train": train, "validation": dev, "test": dev}
        if "test" in splits:
            return splits
        own = {"train": train} if self.validation is None else self.validation(train, options)
        return {**own, "test": dev}


def from_files(
    task: str, files: Mapping[str, str | Sequence[str]], read: Callable[[Path], Sequence[Example]]
) -> Reader:
    """Return a reader of one file per split, the first that one of its patterns names."""

    def reader(path: Path, _: DataOptions) -> Splits:
        patterns = {split: (names,) if isinstance(names, str) else names for split, names in files.items()}
        found = {split: raw_file(path, names, task) for split, names in patterns.items()}
        return {split: read(file) for split, file in found.items()}

    return reader


def from_hub(
    name: str,
    columns: Sequence[str],
    examples: FromRows,
    *,
    config: str | None = None,
    revision: str | None = None,
    splits: Sequence[str] = SPLITS,
    check: Callable[[DataOptions], None] | None = None,
    lacks: str | None = None,
) -> HubSource:
    """Return a copy on the hub whose splits are tables of these columns.

    ``examples`` makes the examples of a split, given the data set's name and its rows. ``splits`` are those that are
    read, as far as the copy has them. ``check`` refuses options that the copy cannot serve.
    """

    def read(options: DataOptions) -> Splits:
        if check is not None:
            check(options)
        rows = hub_rows(name, config, columns, revision)
        return {split: examples(name, rows[split]) for split in splits if split in rows}

    return HubSource(name, read, lacks)


def raw_folder(path: Path) -> Path:
    """Return the folder of raw data; for a file, its own folder counts."""
    return path if is_folder(path) else path.parent


def raw_file(path: Path, patterns: Sequence[str], task: str) -> Path:
    """Return the first file of a task's folder that one of the patterns names.

    Raises:
        MissingDataError: the folder has none of them; the message says what it has.
    """
    folder = raw_folder(path)
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    names = [file.name for file in entries(folder)]
    raise MissingDataError(
        f"{folder}: task {task!r} needs a file {' or '.join(patterns)} here, but the folder holds "
        f"{shown(names) or 'nothing'}; see `foretoken tasks` for where to get the data"
    )
