"""Raw files of a task in a folder or an archive, read into memory without writing to disk."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from foretoken.data.readers.files import MOST_UNPACKED, is_folder, opened, read_bytes, refuse_damage
from foretoken.errors import DataError

_Wanted = Callable[[PurePosixPath], bool]
_File = tuple[PurePosixPath, str, bytes]  # name, where, content


def raw_files(path: Path, archive: str, wanted: _Wanted) -> list[_File]:
    """Return (name, where, content) of the wanted files of a folder or an archive, sorted by name.

    If a folder has none, the archive in it with the pattern ``archive`` is read.

    Raises:
        DataError: an archive cannot be read, is damaged, or unpacks to more than any data set has.
    """
    if not is_folder(path):
        return sorted(_unpacked(path, wanted))
    places = {PurePosixPath(file.relative_to(path).as_posix()): file for file in path.rglob("*") if not is_folder(file)}
    files = [name for name in sorted(places) if wanted(name)]
    archives = sorted(path.glob(archive))
    if files or not archives:
        return [(name, str(places[name]), read_bytes(places[name])) for name in files]
    return sorted(_unpacked(archives[0], wanted))


def _unpacked(archive: Path, wanted: _Wanted) -> Iterator[_File]:
    with opened(archive) as file, refuse_damage(f"{archive}: the archive is damaged or no tar or zip archive"):
        for name, content in (_of_zip if zipfile.is_zipfile(file) else _of_tar)(archive, file, wanted):
            yield PurePosixPath(name), f"{archive}:{name}", content


def _of_zip(archive: Path, file: BinaryIO, wanted: _Wanted) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as content:
        members = [member for member in content.infolist() if wanted(PurePosixPath(member.filename))]
        _refuse_bomb(archive, (member.file_size for member in members))
        yield from ((member.filename, content.read(member)) for member in members)


def _of_tar(archive: Path, file: BinaryIO, wanted: _Wanted) -> Iterator[tuple[str, bytes]]:
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:*") as content:
        _refuse_bomb(archive, (member.size for member in content))
        for member in content.getmembers():
            if member.isfile() and wanted(PurePosixPath(member.name)) and (stream := content.extractfile(member)):
                yield member.name, stream.read()


def _refuse_bomb(archive: Path, sizes: Iterable[int]) -> None:
    """Raise at the first member that exceeds the limit, before it is unpacked to reach the next."""
    unpacked = 0
    for size in sizes:
        unpacked += size
        if unpacked > MOST_UNPACKED:
            raise DataError(f"{archive}: unpacks to more than {MOST_UNPACKED:,} bytes; fetch it again")
