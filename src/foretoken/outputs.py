"""The file that a user names for results: never one that the command reads, and another one only if told to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from foretoken.errors import SaveError
from foretoken.files import PathLike, check_writable, is_stream, os_errors_as_save_error


def check_output(output: PathLike, reads: Iterable[PathLike], *, overwrite: bool = False) -> None:
    """Raise where results written to ``output`` would take something away, or could not be written; before the work.

    Args:
        output: a file to be written, or a device or a pipe to be written into.
        reads: files and folders that the results come from; what is no path is passed over.
        overwrite: whether a file that exists may be replaced.

    Raises:
        SaveError: it is a folder, a file that is read or lies in a folder that is read, a file that exists, or in a
            place that cannot be written to.

    >>> data = getfixture("tmp_path") / "mail.csv"
    >>> _ = data.write_text("text,label")
    >>> check_output(data, [data], overwrite=True)
    Traceback (most recent call last):
    ...
    foretoken.errors.SaveError: cannot write ...mail.csv: this command reads ...mail.csv; choose another place
    """
    target = Path(output)
    with os_errors_as_save_error(target):
        _check(target, reads, overwrite=overwrite)


def refuse_foreign(file: PathLike, mark: str, *, beside: Iterable[Path] = ()) -> None:
    """Raise unless a file begins with a mark, as the one that it is to replace does, or is not there.

    Args:
        file: of a name that a command chooses itself.
        mark: how such a file begins.
        beside: files that are written together with it.

    Raises:
        SaveError: a file is there, and was not written by the command.

    >>> page = getfixture("tmp_path") / "report.md"
    >>> refuse_foreign(page, "# Benchmarks")
    >>> _ = page.write_text("My report")
    >>> refuse_foreign(page, "# Benchmarks")
    Traceback (most recent call last):
    ...
    foretoken.errors.SaveError: ...report.md exists and was not written by this command; choose another folder
    """
    own = Path(file)
    with os_errors_as_save_error(own):
        is_own = own.is_file() and _begins(own, mark.encode())
        found = None if is_own else next((path for path in (own, *beside) if path.exists()), None)
    if found is not None:
        raise SaveError(f"{found} exists and was not written by this command; choose another folder")


def _check(target: Path, reads: Iterable[PathLike], *, overwrite: bool) -> None:
    read = next((name for name in reads if _is_in(target, Path(name))), None)
    if read is not None:
        raise SaveError(f"cannot write {target}: this command reads {read}; choose another place")
    if is_stream(target):
        return
    if target.is_dir():
        raise SaveError(f"cannot write {target}: it is a folder; name a file in it")
    if target.exists() and not overwrite and target.stat().st_size:
        raise SaveError(f"{target} exists; --overwrite replaces it, or choose another name")
    check_writable(target.parent)


def _is_in(target: Path, read: Path) -> bool:
    """Tell whether a path is another one, or below it, by whatever name or link."""
    if not read.exists():
        return False
    return any(place.exists() and place.samefile(read) for place in (target, *Path(os.path.realpath(target)).parents))


def _begins(file: Path, mark: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(mark)) == mark
