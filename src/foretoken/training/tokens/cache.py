"""Data as they were read, and as they were tokenised, kept under keys of all that they were made of.

An entry is a folder, named by the SHA-256 of its ingredients. It holds one Arrow file per split, which is mapped into
memory, and ``entry.json``: facts, the messages that were logged when it was made, and a checksum of every file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from datasets import Dataset

from foretoken import __version__
from foretoken.errors import ConfigError, quoted
from foretoken.files import (
    CACHE_VARIABLE,
    JsonObject,
    cache_folder,
    file_digest,
    remove,
    remove_strays,
    temporary_name,
)

log = logging.getLogger(__name__)
LIMIT_VARIABLE = "FORETOKEN_CACHE_LIMIT"
DEFAULT_LIMIT = 10 * 10**9  # bytes
FORMAT = 1  # raise it whenever the files of an entry mean something else
FOLDER, ENTRY = "data", "entry.json"
Message: TypeAlias = tuple[str, int, str]  # logger, level, text

_LIBRARIES = ("datasets", "pyarrow", "scikit-learn", "tokenizers", "transformers")
_CODE = ("data", "training/tokens", "training/problems")
_RECORDING = threading.RLock()
_ROWS = 1000  # that are written at once
_KEY = re.compile("[0-9a-f]{64}")
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException)


@dataclass(frozen=True)
class Content:
    """What an entry keeps: tables by split, and facts that JSON can say."""

    tables: Mapping[str, Dataset]
    facts: JsonObject


@dataclass(frozen=True)
class Entry:
    """One entry as `foretoken cache` lists it."""

    path: Path
    name: str
    kind: str
    size: int
    used: float

    @property
    def key(self) -> str:
        """What `foretoken cache --clear` takes, or the beginning of it."""
        return self.path.stem

    @property
    def idle_days(self) -> float:
        """For how many days it has not been used."""
        return max(0.0, time.time() - self.used) / 86400


def cached(
    ingredients: Callable[[], JsonObject | None], make: Callable[[], Content], *, kind: str, name: str
) -> Content:
    """Return what ``make`` returns, from the cache where it has it; what was logged then is logged again.

    Args:
        ingredients: all that the content depends on; None where that is not known, so that nothing is kept.
        make: what makes the content.
        kind: of the content: ``documents`` or ``tokens``.
        name: of the data set, for `foretoken cache`.
    """
    root = cache_folder()
    before = None if root is None else ingredients()
    if root is None or before is None:
        return make()
    limit = size_limit()
    path = root / FOLDER / key_of(before | {"kind": kind})
    found = _read(path)
    if found is not None:
        log.debug("%s of %s: from %s", kind, name, path)
        return found
    with _recorded() as messages:
        content = make()
    if ingredients() == before:  # else a file was changed while it was read
        _write(path, content, {"kind": kind, "name": name, "messages": messages})
        keep_below(limit, root)
    return content


def key_of(ingredients: JsonObject) -> str:
    """Return the key of what is made of these ingredients by this version of the code."""
    made_by = {"format": FORMAT, "code": code_digest(_CODE), **{name: version(name) for name in _LIBRARIES}}
    return hashlib.sha256(_plain_json({**made_by, "ingredients": ingredients}).encode()).hexdigest()


def entries(root: Path) -> list[Entry]:
    """Return what is in a cache folder, the least recently used first."""
    found = [_entry(path) for path in entry_folders(root)]
    found += [_file_entry(path) for path in root.glob("pydocs-*.parquet")]
    return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.used)


def entry_folders(root: Path) -> list[Path]:
    """Return the folders of the entries; those that another process is writing or removing have other names."""
    return [path for path in root.glob(f"{FOLDER}/*") if _KEY.fullmatch(path.name)]


def remove_entry(path: Path) -> None:
    """Remove an entry; no other process sees half of it, and one that has mapped its files keeps them.

    Raises:
        OSError: it cannot be removed.
    """
    hidden = path.with_name(temporary_name())
    with suppress(FileNotFoundError):  # another process has removed it
        path.rename(hidden)
    remove(hidden)


def remove_damaged(path: Path, what: str, error: Exception) -> None:
    """Say that the cached ``what`` of an entry are damaged and remove it, unless another process has removed it."""
    if not path.is_dir():
        return
    log.warning("%s: the cached %s are damaged (%s) and are made again", path, what, _reason(error))
    with suppress(OSError):
        remove_entry(path)


def size_limit() -> int:
    """Return how many bytes the cache may take: $FORETOKEN_CACHE_LIMIT, or 10 GB.

    Raises:
        ConfigError: the variable is no size.

    >>> getfixture("monkeypatch").setenv("FORETOKEN_CACHE_LIMIT", "1.5 GB")
    >>> size_limit()
    1500000000
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_LIMIT
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?b)?", text.lower(), re.ASCII)
    if found is None:
        raise ConfigError(f"{LIMIT_VARIABLE}: got {quoted(text)}, expected a size, e.g. 500MB or 10GB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def _read(path: Path) -> Content | None:
    """Return an entry, and log what was logged when it was made; a damaged one is removed."""
    if not path.is_dir():
        return None
    try:
        values = read_entry(path)
        tables = {}
        for name, digest in values["files"].items():
            file = path / f"{name}.arrow"
            if file_digest(file) != digest:
                raise ValueError(f"{file.name} is not what was written")
            tables[name] = Dataset.from_file(str(file))
        messages: list[Message] = [(where, level, text) for where, level, text in values["messages"]]
    except _DAMAGE as error:
        remove_damaged(path, "data", error)
        return None
    with suppress(OSError):
        os.utime(path / ENTRY)
    for where, level, text in messages:
        logging.getLogger(where).log(level, "%s", text)
    return Content(tables, values["facts"])


def read_entry(path: Path) -> JsonObject:
    """Return what an entry says of itself.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged; also LookupError and TypeError.
    """
    written: JsonObject = json.loads((path / ENTRY).read_text(encoding="utf-8"))
    values: JsonObject = written["entry"]
    if written["digest"] != _text_digest(_plain_json(values)):
        raise ValueError(f"{ENTRY} is not what was written")
    return values


def _write(path: Path, content: Content, values: JsonObject) -> None:
    """Write an entry of tables."""

    def fill(folder: Path) -> JsonObject:
        files = {}
        for name, table in content.tables.items():
            file = folder / f"{name}.arrow"
            _write_table(file, table)
            files[name] = file_digest(file)
        return {"facts": content.facts, "files": files}

    write_entry(path, values, fill)


def write_entry(path: Path, values: JsonObject, fill: Callable[[Path], JsonObject]) -> None:
    """Write an entry under a temporary name and rename it; of two processes the first one's stays.

    A disk that is full or read-only is said once, and nothing is written.

    Args:
        path: of the entry.
        values: what it says of itself.
        fill: writes its files into a folder, and returns what else it says of itself.
    """
    temporary = path.with_name(temporary_name())
    try:
        temporary.mkdir(parents=True)
        remove_strays(path.parent)
        entry = values | fill(temporary)
        text = json.dumps({"digest": _text_digest(_plain_json(entry)), "entry": entry})
        (temporary / ENTRY).write_text(text, encoding="utf-8")
        temporary.rename(path)
    except (OSError, pa.ArrowException) as error:
        if not path.exists():
            _say_unusable(path.parent, _reason(error))
    finally:
        remove(temporary)


def _write_table(file: Path, table: Dataset) -> None:
    plain = table.with_format("arrow")
    schema = table.features.arrow_schema
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for start in range(0, len(table), _ROWS):
            writer.write_table(plain[start : start + _ROWS].cast(schema))


def keep_below(limit: int, root: Path) -> None:
    """Remove the least recently used entries until the rest is within the limit."""
    found = [entry for entry in entries(root) if entry.path.parent.name == FOLDER]
    total = sum(entry.size for entry in found)
    for entry in found:
        if total <= limit:
            return
        log.debug("%s: removed, as the cache is beyond its limit of %d bytes", entry.path, limit)
        with suppress(OSError):
            remove_entry(entry.path)
        total -= entry.size


def _entry(path: Path) -> Entry | None:
    try:
        values = json.loads((path / ENTRY).read_text(encoding="utf-8"))["entry"]
        name, kind = str(values["name"]), str(values["kind"])
    except _DAMAGE:
        name, kind = "damaged", "-"
    with suppress(OSError):  # another process has removed it
        size = sum(file.stat().st_size for file in path.iterdir())
        used = (path / ENTRY if (path / ENTRY).exists() else path).stat().st_mtime
        return Entry(path, name, kind, size, used)
    return None


def _file_entry(path: Path) -> Entry | None:
    with suppress(OSError):
        found = path.stat()
        return Entry(path, "pydocs", "sources", found.st_size, found.st_mtime)
    return None


class _Recorder(logging.Handler):
    """Keep what this thread logs, and show it as it would have been shown."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self.handlers, self.parent = list(logger.handlers), logger.parent if logger.propagate else None
        self.shown = logger.getEffectiveLevel()
        self.thread = threading.get_ident()
        self.messages: list[Message] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self.thread and record.levelno >= logging.INFO:
            self.messages.append((record.name, record.levelno, record.getMessage()))
        if record.levelno < self.shown:
            return
        for handler in self.handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self.parent is not None:
            self.parent.callHandlers(record)


@contextmanager
def _recorded() -> Iterator[Sequence[Message]]:
    """Collect what is logged inside, down to INFO: another run may show more of it than this one."""
    logger = logging.getLogger("foretoken")
    with _RECORDING:
        recorder = _Recorder(logger)
        before = logger.level, logger.propagate, logger.handlers
        logger.setLevel(min(recorder.shown, logging.INFO))
        logger.propagate, logger.handlers = False, [recorder]
        try:
            yield recorder.messages
        finally:
            logger.propagate, logger.handlers = before[1:]
            logger.setLevel(before[0])


@cache  # once per place and reason
def _say_unusable(folder: Path, reason: str) -> None:
    log.warning("%s: nothing can be cached (%s); set %s to another folder, or to 0", folder, reason, CACHE_VARIABLE)


@cache
def code_digest(parts: tuple[str, ...]) -> str:
    """Return a digest of code that makes entries: a change of it makes other entries."""
    root = Path(__file__).parents[2]
    files = sorted(file for part in parts for file in (root / part).rglob("*.py"))
    lines = [f"{file.relative_to(root)} {file_digest(file)}" for file in files]
    return _text_digest("\n".join([__version__, *lines]))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _plain_json(values: JsonObject) -> str:
    return json.dumps(values, sort_keys=True)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).split("\n")[0][:200]
