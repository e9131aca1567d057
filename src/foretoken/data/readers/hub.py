"""Data through the `datasets` library: hub names, and folders written by save_to_disk."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from foretoken.data.columns import Columns
from foretoken.data.documents import SPLIT_ALIASES, SPLITS, Corpus, shown
from foretoken.data.problems import CLASSIFICATION
from foretoken.data.readers.parquet import refuse_damage
from foretoken.data.readers.rows import Row, check_columns, names_of_labels, refuse_claim
from foretoken.data.readers.user_data import examples_from_rows
from foretoken.errors import DataError

_log = logging.getLogger(__name__)
Convert = Callable[[Row], "Row | None"]
HUB_PREFIX = "hub:"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOCAL_SUFFIX = re.compile(r"\.(csv|tsv|jsonl|ndjson|json|parquet|txt|zip|gz|xz|tar)$", re.IGNORECASE)


def hub_name(path: str) -> str | None:
    """Return the hub name that a path spells, or None where it can only be a local path.

    >>> hub_name("stanfordnlp/imdb"), hub_name("hub:imdb"), hub_name("data/train.csv"), hub_name("./a/b")
    ('stanfordnlp/imdb', 'imdb', None, None)
    """
    if path.startswith(HUB_PREFIX):
        return path.removeprefix(HUB_PREFIX)
    if path.startswith((".", "/", "~")) or _LOCAL_SUFFIX.search(path):
        return None
    return path if _HUB_NAME.fullmatch(path) else None


def read_hub(name: str, config_name: str | None, columns: Columns, convert: Convert | None = None) -> Corpus:
    """Return the labelled examples of a hub data set, by split; ``convert`` reworks a row, or drops it.

    Raises:
        DataError: the hub is out of reach, data set or configuration are unknown, or a column is missing.
    """
    import datasets

    try:
        loaded = datasets.load_dataset(name, config_name)
    except (ConnectionError, TimeoutError, datasets.exceptions.DatasetNotFoundError) as error:
        raise DataError(
            f"hub data set {name!r}: no local file or folder has this name, and the hub was not reached "
            f"or has no such data set ({_one_line(error)}); check the name and the connection, or set path "
            "to a local copy: a csv, jsonl or parquet file, or a folder"
        ) from error
    except Exception as error:  # the library raises whatever its parsers raise
        raise DataError(f"hub data set {name!r} (config {config_name!r}): {_one_line(error)}") from error
    return _corpus(f"hub data set {name!r}", loaded, columns, convert)


def read_saved(root: Path, columns: Columns) -> Corpus:
    """Return the labelled examples of a folder written by ``save_to_disk``."""
    import datasets

    with refuse_damage(f"{root}: the saved data set cannot be read"):
        loaded = datasets.load_from_disk(str(root))
        for table in _tables(loaded).values():
            table.data.table.validate(full=True)  # arrow reads what an offset points to, wherever that is
        return _corpus(str(root), loaded, columns, None)


def _corpus(source: str, loaded: Any, columns: Columns, convert: Convert | None) -> Corpus:
    tables = _tables(loaded)
    splits: dict[str, list[Any]] = {}
    for name, table in tables.items():
        split = SPLIT_ALIASES.get(str(name).lower())
        if split is None:
            continue
        if split in splits:
            raise DataError(f"{source}: has two splits for {split}; keep one of {', '.join(map(str, tables))}")
        rows = _rows(f"{source} [{name}]", table, columns)
        if convert is not None:
            rows = (row for row in map(convert, rows) if row is not None)
        splits[split] = examples_from_rows(f"{source} [{name}]", rows, columns)
    unread = [str(name) for name in tables if SPLIT_ALIASES.get(str(name).lower()) is None]
    if not splits:
        raise DataError(f"{source}: its splits are {', '.join(map(str, tables))}; expected train, validation, test")
    if unread:
        _log.warning("%s: not read, as they are none of %s: %s", source, ", ".join(SPLITS), shown(unread))
    return Corpus(splits, problem=columns.problem)


def _tables(loaded: Any) -> dict[Any, Any]:
    return dict(loaded) if isinstance(loaded, Mapping) else {"train": loaded}


def _rows(source: str, table: Any, columns: Columns) -> Iterator[Row]:
    check_columns(source, table.column_names, columns.needed)
    refuse_claim(source, len(table))
    kept = table.select_columns([name for name in table.column_names if name in {*columns.needed, "id", "title"}])
    named = columns.label if columns.problem == CLASSIFICATION else None
    names = getattr(table.features[named], "names", None) if named else None
    for number, values in enumerate(kept, start=1):
        where = f"{source} row {number}"
        yield where, {**values, **({named: names_of_labels(where, values[named], names)} if named else {})}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
