"""Files of the GLUE tasks: values between tabs, one row per line, and no quoting."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from foretoken.data.readers.files import read_text
from foretoken.data.readers.rows import Row, check_columns
from foretoken.errors import DataError

_log = logging.getLogger(__name__)


def tsv_rows(
    path: Path, needed: Sequence[str], *, header: Sequence[str] | None = None, skip_broken: bool = False
) -> Iterator[Row]:
    """Yield the rows of a file, each by its column names.

    A ``header`` names the columns of a file that has none; such rows may go on with more. ``skip_broken`` leaves out
    rows with another number of fields than the header, and the log counts them.

    Raises:
        DataError: a column is missing, or a row has too many or too few fields; the message names file and line.
    """
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(read_text(path).split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line]
    names = header or lines.pop(0)[1].split("\t")
    check_columns(f"{path}:1", names, needed)
    broken = 0
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) == len(names) or (header and len(fields) > len(names)):
            yield f"{path}:{number}", dict(zip(names, fields, strict=False))
        elif skip_broken:
            broken += 1
        else:
            raise DataError(
                f"{path}:{number}: the row has {len(fields)} fields, expected {len(names)} ({', '.join(names)}), "
                "with a tab between two of them and without quotes; fetch the file again"
            )
    if broken:
        _log.info("%s: left out %d of %d rows, which are broken in the published file", path, broken, len(lines))
