"""Records of runs: compressed JSON, written as a whole, the same bytes for the same content."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from foretoken.files import atomic_file

RECORDS = Path(__file__).parent / "records"


def read_records(name: str | Path) -> Any:
    """Return what a file of records holds: a path, or the name of one in ``research/records``."""
    return json.loads(gzip.decompress(place(name).read_bytes()))


def write_records(name: str | Path, content: Any) -> None:
    """Write a file of records in the place of an older one."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    with atomic_file(place(name)) as temporary:
        temporary.write_bytes(gzip.compress(text.encode(), mtime=0))


def place(name: str | Path) -> Path:
    """Return the path that a name stands for."""
    return name if isinstance(name, Path) else RECORDS / f"{name}.json.gz"
