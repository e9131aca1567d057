"""The cache of the pydocs task: one parquet file per set of installed versions."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from foretoken.data.documents import Document
from foretoken.data.splits import digest
from foretoken.data.tasks.pydocs.sources import PACKAGES
from foretoken.files import cache_folder

FORMAT = 1  # raise it whenever the documents change for the same installed versions
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
_COLUMNS = ("id", "text", "label", "where", "group")
_log = logging.getLogger(__name__)


def cache_file() -> Path | None:
    """Return the file for the documents of the installed versions; None where nothing is cached."""
    folder = cache_folder()
    return None if folder is None else folder / f"pydocs-{digest(FORMAT, *_versions())[:16]}.parquet"


def _versions() -> list[str]:
    from importlib import metadata

    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(_DISTRIBUTIONS.get(package, package))}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} absent")
    return versions


def read_cached() -> list[Document] | None:
    """Return the cached documents, or None where there are none that can be read."""
    import pyarrow
    from pyarrow import parquet

    path = cache_file()
    if path is None:
        return None
    try:
        rows = parquet.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except FileNotFoundError:
        return None
    except (OSError, pyarrow.ArrowException) as error:
        _log.warning("%s: the cache cannot be read (%s) and is built again", path, error)
        return None
    return [Document(**row) for row in rows]


def write_cached(documents: list[Document]) -> None:
    """Write the cache under a temporary name and rename it; an unwritable folder is only logged."""
    import tempfile

    import pyarrow
    from pyarrow import parquet

    path = cache_file()
    if path is None:
        return
    table = pyarrow.table({name: [getattr(document, name) for document in documents] for name in _COLUMNS})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        os.close(handle)
        try:
            parquet.write_table(table, temporary)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s: the cache could not be written (%s); the next run builds the documents again", path, error)
