"""Finding the raw files of a task, and what its official dev set is used for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from foretoken.data.documents import shown
from foretoken.data.readers.files import entries, is_folder
from foretoken.data.tasks.base import OFFICIAL
from foretoken.errors import DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions

_log = logging.getLogger(__name__)
T = TypeVar("T")


def raw_file(path: Path | None, patterns: Sequence[str], task: str) -> Path:
    """Return the first file of a task's folder that one of the patterns names; for a file, its own folder counts.

    Raises:
        DataError: the folder has none of them; the message says what it has.
    """
    assert path is not None
    folder = path if is_folder(path) else path.parent
    for pattern in patterns:
        found = sorted(file for file in folder.glob(pattern) if file.is_file())
        if found:
            return found[0]
    names = [file.name for file in entries(folder)]
    raise DataError(
        f"{folder}: task {task!r} needs a file {' or '.join(patterns)} here, but the folder holds "
        f"{shown(names) or 'nothing'}; see `foretoken tasks` for where to get the data"
    )


def dev_as_test(task: str, train: list[T], dev: list[T], options: DataOptions) -> dict[str, list[T]]:
    """Return the splits of a task whose official test set has no public answers.

    The official dev set is the test, and validation is taken from train later. With ``split: official`` it is both,
    as most papers report it, and the log warns.
    """
    if options.split != OFFICIAL:
        return {"train": train, "test": dev}
    _log.warning(
        "%s: split 'official' selects on the official dev set and reports it too: its scores are optimistic; "
        "split 'clean' takes validation from train",
        task,
    )
    return {"train": train, "validation": dev, "test": dev}
