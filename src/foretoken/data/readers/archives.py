"""Files in archives, read into memory: nothing is written to disk."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from foretoken.data.readers.files import opened
from foretoken.errors import DataError

_MOST_BYTES = 1 << 30  # what the files of an archive may unpack to
_Files = list[tuple[PurePosixPath, bytes]]


def tar_files(archive: Path, wanted: Callable[[PurePosixPath], bool]) -> _Files:
    """Return name and content of the wanted files of a tar archive, packed or not, in the order of their names.

    Raises:
        DataError: the archive cannot be read, is damaged, or unpacks to more than any data set has.
    """
    import tarfile

    with opened(archive) as file, _refuse_damage(archive, "tar"), tarfile.open(fileobj=file, mode="r:*") as tar:
        members = [member for member in tar if member.isfile() and wanted(PurePosixPath(member.name))]
        _refuse_bomb(archive, sum(member.size for member in members))
        contents = [(PurePosixPath(member.name), tar.extractfile(member)) for member in members]
        return sorted((name, content.read()) for name, content in contents if content is not None)


def zip_files(archive: Path, wanted: Callable[[PurePosixPath], bool]) -> _Files:
    """Return name and content of the wanted files of a zip archive, in the order of their names.

    Raises:
        DataError: as for :func:`tar_files`.
    """
    with opened(archive) as file, _refuse_damage(archive, "zip"), zipfile.ZipFile(file) as content:
        members = [member for member in content.infolist() if wanted(PurePosixPath(member.filename))]
        _refuse_bomb(archive, sum(member.file_size for member in members))
        return sorted((PurePosixPath(member.filename), content.read(member)) for member in members)


@contextmanager
def _refuse_damage(archive: Path, kind: str) -> Iterator[None]:
    import lzma
    import tarfile
    import zlib

    damage = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, OSError, ValueError)
    encrypted = (RuntimeError, NotImplementedError)  # so zipfile says it, and of packings that it does not know
    try:
        yield
    except DataError:
        raise
    except (*damage, *encrypted) as error:
        raise DataError(f"{archive}: the archive is damaged or no {kind} archive ({error}); fetch it again") from error


def _refuse_bomb(archive: Path, size: int) -> None:
    if size > _MOST_BYTES:
        raise DataError(f"{archive}: unpacks to {size:,} bytes, and at most {_MOST_BYTES:,} are read; fetch it again")
