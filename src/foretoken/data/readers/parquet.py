"""Rows of parquet files, read piece by piece: a small file can unpack to more than there is memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from foretoken.data.fields import read_names
from foretoken.data.readers.files import kind_of, opened, refuse_damage, unchanged
from foretoken.data.readers.labels import named_row
from foretoken.data.readers.rows import OPTIONAL, Row, check_columns, refuse_claim, refuse_repeated
from foretoken.errors import DataError

_PIECE = 1000  # rows
_BEGINNING, _BUFFER = 4096, 1 << 20  # bytes
_MOST_BYTES, _MOST_TIMES = 1 << 30, 200  # what a file may unpack to: so much, or so many times its own size


def parquet_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    """Return the rows of a parquet file, each with the needed columns, or all; class numbers become names.

    Raises:
        DataError: the file is damaged, lacks a column, or unpacks to more than any table of texts.
    """
    with opened(path) as source, unchanged(path, source):
        yield from _rows(path, source, needed)


def _rows(path: Path, source: BinaryIO, needed: Sequence[str]) -> Iterator[Row]:
    from pyarrow import parquet

    beginning, size = source.read(_BEGINNING), os.fstat(source.fileno()).st_size
    if not beginning.startswith(b"PAR1"):
        what = kind_of(beginning) or "something else: give it the ending of its format"
        raise DataError(
            f"{path}: not a parquet file but {what}" if size else f"{path}: the file is empty; expected rows"
        )
    with refuse_damage(f"{path}: not a readable parquet file"):
        file = parquet.ParquetFile(source, buffer_size=_BUFFER)
        schema, claimed = file.schema_arrow, file.metadata.num_rows
    check_columns(str(path), schema.names, needed)
    refuse_repeated(str(path), schema.names, needed)
    refuse_claim(str(path), claimed)
    classes = _class_names(schema.metadata or {})
    kept = read_names(schema.names, [*needed, *OPTIONAL]) if needed else schema.names
    number = 0
    for values in _records(file, kept, path, size):
        number += 1
        where = f"{path}:row {number}"
        yield named_row(where, values, classes)
    if number != claimed:
        raise DataError(f"{path}: has {number:,} rows, but says {claimed:,}; write it again")


def _records(file: Any, columns: Sequence[str], path: Path, size: int) -> Iterator[Mapping[str, object]]:
    unpacked, most = 0, max(_MOST_BYTES, _MOST_TIMES * size)
    pieces = file.iter_batches(_PIECE, columns=columns, use_threads=False)
    while True:
        with refuse_damage(f"{path}: not a readable parquet file"):
            piece = next(pieces, None)
            if piece is None:
                return
            unpacked += piece.nbytes
            if unpacked > most:
                raise DataError(f"{path}: {size:,} bytes unpack to more than {most:,}; take a file that repeats less")
            piece.validate(full=True)
            records = piece.to_pylist()
        yield from records


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names that `datasets` wrote into the file, by column."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        inner = {
            name: feature.get("feature", feature) for name, feature in features.items() if isinstance(feature, dict)
        }
        return {
            name: [str(label) for label in feature["names"]]
            for name, feature in inner.items()  # of a label, or of a list of them
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and "names" in feature
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}
