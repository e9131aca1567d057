"""Files and folders: written whole or not at all, and never read where that could run code.

Everything is written beside its target under a hidden temporary name and renamed onto it at the end. Whatever
goes wrong before that, a full disk or Ctrl-C included, leaves the old content as it was and removes the new.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from foretoken.errors import AdapterError, ForetokenError, SaveError

PathLike: TypeAlias = str | os.PathLike[str]

_FREE_SPACE = "free some space or choose another place"
_PERMISSION = "choose a folder that you may write to"
_OTHER_NAME = "choose another name"
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: _FREE_SPACE,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.EISDIR: _OTHER_NAME,
    errno.ENOTDIR: _OTHER_NAME,
    errno.ENAMETOOLONG: "choose a shorter name",
}

# safetensors and torch report a failed write with exceptions of their own, which are no OSError.
_FOREIGN_WRITE_FAILURE = re.compile(r"\(os error (\d+)\)|PytorchStreamWriter failed|unexpected pos \d+ vs \d+")


def write_text(path: PathLike, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, whole or not at all; missing parent folders are made.

    Raises :class:`~foretoken.errors.SaveError` when it cannot be written.

    >>> folder = getfixture("tmp_path")
    >>> write_text(folder / "notes" / "a.txt", "hello")
    >>> (folder / "notes" / "a.txt").read_text()
    'hello'
    """
    with atomic_file(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_json(path: PathLike, obj: Any) -> None:
    """Write ``obj`` to ``path`` as indented JSON; NaN and infinities, which JSON does not have, become null.

    Raises :class:`~foretoken.errors.SaveError` when it cannot be written, ``TypeError`` for other objects.

    >>> file = getfixture("tmp_path") / "run.json"
    >>> write_json(file, {"accuracy": 0.5, "loss": float("nan")})
    >>> json.loads(file.read_text())
    {'accuracy': 0.5, 'loss': None}
    """
    write_text(path, json.dumps(_finite(obj), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def atomic_file(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes ``path`` when the block ends well, else it is removed.

    Raises :class:`~foretoken.errors.SaveError` for any ``OSError`` inside the block.

    >>> file = getfixture("tmp_path") / "table.csv"
    >>> with atomic_file(file) as temporary:
    ...     _ = temporary.write_text("a,b")
    >>> file.read_text()
    'a,b'
    """
    target = Path(path)
    with _os_errors_as_save_error(target), _temporary_sibling(target) as temporary:
        if target.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield temporary
        _to_disk(temporary)
        temporary.replace(target.resolve())


@contextmanager
def atomic_directory(path: PathLike) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes ``path`` when the block ends well, else it is removed.

    An existing folder is replaced as a whole, and only after the block has ended well.
    Raises :class:`~foretoken.errors.SaveError` for any ``OSError`` inside the block.

    >>> folder = getfixture("tmp_path") / "adapter"
    >>> with atomic_directory(folder) as temporary:
    ...     write_text(temporary / "README.md", "An adapter.")
    >>> [file.name for file in folder.iterdir()]
    ['README.md']
    """
    target = Path(path)
    with _os_errors_as_save_error(target), _temporary_sibling(target) as temporary:
        if target.exists() and not target.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        temporary.mkdir()
        yield temporary
        _swap_in(temporary, target.resolve())


def check_writable(directory: PathLike) -> None:
    """Raise :class:`~foretoken.errors.SaveError` unless a file can be made in ``directory``.

    For a folder that does not exist yet, its nearest existing parent is tried; nothing is left behind.

    >>> check_writable(getfixture("tmp_path") / "runs" / "first")
    """
    with _os_errors_as_save_error(Path(directory)):
        place = Path(directory).resolve()
        while not place.exists() and place != place.parent:
            place = place.parent
        probe = place / _temporary_name()
        probe.touch(exist_ok=False)
        probe.unlink()


def refuse_pickled_adapter(folder: PathLike) -> None:
    """Raise :class:`~foretoken.errors.AdapterError` where the tensors of a folder's adapter are a pickle alone.

    >>> folder = getfixture("tmp_path")
    >>> write_text(folder / "adapter_model.bin", "")
    >>> refuse_pickled_adapter(folder)
    Traceback (most recent call last):
    ...
    foretoken.errors.AdapterError: ...adapter_model.bin is a pickle, which can run code when it is loaded; ...
    """
    pickled = Path(folder) / "adapter_model.bin"
    if pickled.exists() and not (Path(folder) / "adapter_model.safetensors").is_file():
        raise AdapterError(
            f"{pickled} is a pickle, which can run code when it is loaded; "
            "save the adapter as safetensors (save_pretrained does) and load that"
        )


def _finite(obj: Any) -> Any:
    """Replace the floats that JSON cannot say by None, at any depth."""
    if isinstance(obj, float) and not math.isfinite(obj):
        return None
    if isinstance(obj, dict):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [_finite(value) for value in obj]
    return obj


@contextmanager
def _temporary_sibling(target: Path) -> Iterator[Path]:
    """Yield an unused path beside ``target``; on any failure remove it and the parents made for it."""
    resolved = target.resolve()  # a link keeps pointing where it points: what it points to is replaced
    temporary = resolved.with_name(_temporary_name())
    missing = [parent for parent in resolved.parents if not parent.exists()]
    try:
        _make_folder(resolved.parent)
        yield temporary
    except BaseException:
        _remove(temporary)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file has that name; "file exists" would puzzle
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def _temporary_name() -> str:
    return f".foretoken-{secrets.token_hex(6)}.tmp"


def _to_disk(file: Path) -> None:
    """Put the content on the disk before the rename, so that a power cut keeps either the old or the new."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def _swap_in(temporary: Path, target: Path) -> None:
    """Rename ``temporary`` onto ``target``; the old folder waits beside it until that has worked."""
    old = target.with_name(_temporary_name())
    try:
        if target.exists():
            target.rename(old)
        temporary.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    finally:
        if target.exists():
            _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def _os_errors_as_save_error(path: Path) -> Iterator[None]:
    try:
        yield
    except ForetokenError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _FOREIGN_WRITE_FAILURE.search(str(error)):
            raise
        raise _save_error(path, error) from error


def _save_error(path: Path, error: Exception) -> SaveError:
    code = error.errno if isinstance(error, OSError) else _foreign_errno(error)
    reason = os.strerror(code) if code else " ".join(str(error).split())
    remedy = _REMEDIES.get(code or 0, "check the path and try again")
    return SaveError(f"cannot write {path}: {reason}; {remedy}")


def _foreign_errno(error: Exception) -> int | None:
    found = _FOREIGN_WRITE_FAILURE.search(str(error))
    return int(found[1]) if found and found[1] else None
