"""Notes in the log on how files are read, once per data set."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_log = logging.getLogger(__name__)
_Notes = dict[tuple[int, str], dict[str, str]]  # level and kind -> file -> text
_notes: ContextVar[_Notes | None] = ContextVar("notes", default=None)


def note(path: Path | str, text: str, *, kind: str, level: int = logging.INFO) -> None:
    """Log a note on how a file is read; within :func:`noted_together`, at the end of the block."""
    notes = _notes.get()
    if notes is None:
        _log.log(level, "%s: %s", path, text)
    else:
        notes.setdefault((level, kind), {}).setdefault(str(path), text)


@contextmanager
def noted_together() -> Iterator[None]:
    """Log the first note of each kind at the end of the block, with the number of other files with such a note."""
    token = _notes.set({})
    try:
        yield
    finally:
        notes = _notes.get() or {}
        _notes.reset(token)
        for (level, _), texts in notes.items():
            path, text = next(iter(texts.items()))
            _log.log(level, "%s: %s%s", path, text, f" (and {len(texts) - 1:,} more files)" if len(texts) > 1 else "")
