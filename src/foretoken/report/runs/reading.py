"""Readers of a run's files, which may be damaged, too large, too deep or not written by foretoken."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foretoken.errors import DataError, printable

LARGEST = 64 * 2**20  # bytes of a JSON file; a hundred times those of long runs
MOST_ROWS = 10_000_000  # of predictions
_DEEPEST = 40  # levels of JSON, far below the limit of Python's stack
_SAME = 1e-6  # difference of two equal accuracies


def read_json(file: Path) -> Any:
    """Return the content of a JSON file, with every line of its texts printable.

    Raises:
        DataError: the file does not exist or cannot be read.
    """
    _check_file(file, LARGEST)
    try:
        return _cleaned(json.loads(file.read_text(encoding="utf-8")), _DEEPEST)
    except OSError as error:
        raise DataError(f"{file.name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file.name} is no JSON: {printable(str(error))}") from error


def read_predictions(file: Path) -> pa.Table:
    """Return a table of predictions.

    Raises:
        DataError: the file does not exist or cannot be read.
    """
    _check_file(file)
    try:
        opened = pq.ParquetFile(file)
        if opened.metadata.num_rows > MOST_ROWS:
            raise DataError(f"{file.name} has {opened.metadata.num_rows} rows, more than {MOST_ROWS}")
        return opened.read()
    except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file.name} cannot be read: {type(error).__name__}") from error


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables of predictions as one.

    Raises:
        DataError: their columns differ.
    """
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException:
        raise DataError("the predictions of the folds have unlike columns") from None


def check_accuracy(table: pa.Table, split: str, accuracy: float | None) -> None:
    """Compare predictions with the accuracy in the record of their run.

    Raises:
        DataError: their accuracy differs.
    """
    if accuracy is None or not {"split", "label", "prediction"} <= set(table.column_names):
        return
    try:
        rows = table.filter(pc.equal(table["split"], split))
        right = pc.mean(pc.cast(pc.equal(rows["label"], rows["prediction"]), pa.float64())).as_py()
    except pa.ArrowException:
        return  # labels and predictions of different types, which comparisons report
    if right is not None and abs(right - accuracy) > _SAME:
        raise DataError(f"its predictions are of another run: their accuracy is {right:.4f}, its own {accuracy:.4f}")


def _check_file(file: Path, largest: int | None = None) -> None:
    try:
        status = file.stat()
    except FileNotFoundError:
        raise DataError(f"there is no {file.name}") from None
    except (OSError, RuntimeError) as error:
        raise DataError(f"{file.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{file.name} is no file")
    if largest is not None and status.st_size > largest:
        raise DataError(f"{file.name} has {status.st_size:,} bytes, more than {largest:,}")


def _cleaned(value: Any, levels: int) -> Any:
    if levels == 0:
        raise ValueError(f"it has more than {_DEEPEST} levels")
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {printable(key): _cleaned(item, levels - 1) for key, item in value.items()}
    return [_cleaned(item, levels - 1) for item in value] if isinstance(value, list) else value
