"""The folder of a run: one process works on it at a time, and only what foretoken wrote is ever moved or deleted.

A folder may also hold files of its user: notes, a plot, a copy of the recipe. They stay where they are, whatever
becomes of the run.

A restart moves the files of the earlier run into the hidden folder ``.foretoken-before`` inside the run's folder,
`run.json` last. They are deleted once the new run has taken its first step. Wherever a restart ends before that,
killed or failed, they are moved back: by the same process, or by the next one that works on the run.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from foretoken.errors import RunBusyError
from foretoken.files import (
    make_folder,
    os_errors_as_save_error,
    readable_object,
    remove,
    remove_strays,
    temporary_name,
    write_json,
)

RECORD = "run.json"
PREDICTIONS = "predictions.parquet"
RATE_CURVE = "rate-search.svg"
CHECKPOINTS = "checkpoints"
SAVED = ("adapter", "model")
BEFORE = ".foretoken-before"
_LOCK, _HOLDER = ".foretoken-lock", ".foretoken-holder.json"
# what save_pretrained and the Trainer write
_WRITTEN = (
    r"(adapter_config|config|generation_config|added_tokens|special_tokens_map|trainer_state|checksums|foretoken)\.json"
    r"|(adapter_model|model(-\d+-of-\d+)?)\.safetensors|model\.safetensors\.index\.json|README\.md|tokenizer.*\.json"
    r"|tfidf\.(json|safetensors)|vocab\.(txt|json)|merges\.txt|chat_template\.(jinja|json)|(tokenizer|spiece|sentencepiece\.bpe)\.model"
    r"|(optimizer|scheduler|scaler)\.pt|rng_state(_\d+)?\.pth|training_args\.bin|\.tmp\w{6}"  # the last by safetensors
)
_OWN = re.compile(rf"{RECORD}|{PREDICTIONS}|{RATE_CURVE}|({'|'.join(SAVED)}|{CHECKPOINTS}/checkpoint-\d+)/({_WRITTEN})")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder while the block works on it; what an earlier process left unfinished is put right first.

    Raises:
        RunBusyError: another process holds it; the message says which.
    """
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    make_folder(folder)
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunBusyError(f"{folder}: {_holder(folder)} works on this run; wait for its end, or stop it") from None
    except (OSError, NotImplementedError):  # a disk without locks, or one that is read alone: as before there were any
        lock = None  # type: ignore[assignment]
    try:
        _note_holder(folder)
        put_back(folder)
        for place in (folder, *(folder / CHECKPOINTS).glob("*")):
            remove_strays(place)
        yield
    finally:
        _release(folder, lock)
        for parent in missing:
            with suppress(OSError):  # where there is something in it by now
                parent.rmdir()


def own_files(folder: Path) -> list[Path]:
    """Return the files of a run that foretoken wrote, `run.json` last.

    They are those that the record lists and those that only foretoken, transformers and peft write at their places.
    """
    listed = _listed(folder)
    found = [path for path in _files_below(folder) if _is_own(path.relative_to(folder).as_posix(), listed)]
    return sorted(found, key=lambda path: (path.name == RECORD, path))


def foreign_files(folder: Path, saved: Path) -> list[Path]:
    """Return what is in a saved model's folder, inside a run's, that foretoken did not write."""
    own = set(own_files(folder))
    return [path for path in _files_below(saved) if path not in own]


def is_vacant(folder: Path) -> bool:
    """Tell whether a folder holds nothing, or nothing but what a process leaves that was killed before its record."""
    return not folder.exists() or (folder.is_dir() and all(_is_passing(path) for path in folder.iterdir()))


def is_tidy(folder: Path) -> bool:
    """Tell whether a finished run's folder holds nothing that only an unfinished one needs."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return not any(name.startswith(".foretoken-") or name == CHECKPOINTS for name in names)


@contextmanager
def set_aside(folder: Path) -> Iterator[None]:
    """Move the files of an earlier run out of the way; back again, unless :func:`drop_aside` is called in the block."""
    try:
        with os_errors_as_save_error(folder):
            _move(own_files(folder), folder, folder / BEFORE)
        yield
    finally:
        put_back(folder)


def put_back(folder: Path) -> None:
    """Move the files of an earlier run back, where a restart ended before its first step."""
    before = folder / BEFORE
    if before.is_dir():
        _move(sorted(_files_below(before), key=lambda path: path.name == RECORD), before, folder)
        remove(before)


def drop_aside(folder: Path) -> None:
    """Delete the files of an earlier run: from here on there is no way back."""
    if (folder / BEFORE).is_dir():
        dropped = folder / temporary_name()
        with os_errors_as_save_error(folder):
            (folder / BEFORE).rename(dropped)
        remove(dropped)


def remove_own_below(place: Path, folder: Path) -> None:
    """Delete what foretoken wrote below a place in a run's folder, and then every folder that is empty."""
    for path in own_files(folder):
        if place in path.parents:
            with suppress(OSError):
                path.unlink()
    _prune({place, *(path for path in place.rglob("*") if path.is_dir())}, folder)


def _listed(folder: Path) -> frozenset[str]:
    names = (readable_object(folder / RECORD) or {}).get("files")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _is_own(name: str, listed: frozenset[str]) -> bool:
    return _OWN.fullmatch(name) is not None or (name in listed and name.split("/")[0] in SAVED)


def _is_passing(path: Path) -> bool:
    return path.name.startswith(".foretoken-") or (
        path.is_dir() and path.name == CHECKPOINTS and not any(path.iterdir())
    )


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder; what a link points to is not the folder's."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".foretoken-")]
        yield from (Path(place) / name for name in names if not name.startswith(".foretoken-"))


def _move(paths: list[Path], source: Path, target: Path) -> None:
    for path in paths:
        new = target / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        path.replace(new)
    _prune({path.parent for path in paths}, source)


def _prune(folders: set[Path], above: Path) -> None:
    """Remove empty folders and then their parents, up to `above`, which stays."""
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        while folder != above and above in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                break
            folder = folder.parent


def _note_holder(folder: Path) -> None:
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with suppress(OSError):
        write_json(folder / _HOLDER, {"process": os.getpid(), "host": platform.node(), "since": started})


def _holder(folder: Path) -> str:
    found = readable_object(folder / _HOLDER) or {}
    if not found.keys() >= {"process", "host", "since"}:
        return "another process"
    return f"process {found['process']} on {found['host']} (since {found['since']})"


def _release(folder: Path, lock: FileLock | None) -> None:
    for name in (_HOLDER,) if lock is None else (_HOLDER, _LOCK):
        with suppress(OSError):
            (folder / name).unlink()
    if lock is not None:
        lock.release()
