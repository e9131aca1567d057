"""Tables of a hub data set by split, for tasks whose rows are no single texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foretoken.data.documents import SPLIT_ALIASES
from foretoken.data.readers.rows import Row, check_columns, names_of_labels
from foretoken.errors import DataError

PARQUET = "refs/convert/parquet"  # the hub's own copy of data sets that `datasets` 4 and later cannot run the script of


def hub_rows(name: str, config: str | None, needed: Sequence[str], revision: str | None = None) -> dict[str, list[Row]]:
    """Return the rows of a hub data set by split, each with where it comes from; lists of classes have their names.

    Raises:
        DataError: the hub is out of reach, the data set is unknown, or a column is missing.
    """
    rows: dict[str, list[Row]] = {}
    for split_name, table in _load(name, config, revision).items():
        split = SPLIT_ALIASES.get(str(split_name).lower())
        if split is not None:
            rows[split] = list(_rows(f"hub data set {name!r} [{split_name}]", table, needed))
    return rows


def _load(name: str, config: str | None, revision: str | None) -> Mapping[Any, Any]:
    import datasets

    try:
        if revision is None:
            loaded = datasets.load_dataset(name, config)
        else:  # the branch that the hub converts to parquet has a folder per configuration
            loaded = datasets.load_dataset(name, data_dir=config, revision=revision)
    except Exception as error:  # the library raises whatever its parsers and the network raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(
            f"hub data set {name!r} (config {config!r}) was not loaded ({reason}); check the connection, or get the "
            "raw data and name their folder with data.path"
        ) from error
    return loaded if isinstance(loaded, Mapping) else {"train": loaded}


def _rows(source: str, table: Any, needed: Sequence[str]) -> Iterator[Row]:
    check_columns(source, table.column_names, needed)
    names = {column: _class_names(feature) for column, feature in table.features.items()}
    for number, values in enumerate(table, start=1):
        where = f"{source} row {number}"
        yield where, {column: _named(where, value, names[column]) for column, value in values.items()}


def _class_names(feature: Any) -> Sequence[str] | None:
    """Return the names of the classes that a column of lists of class numbers has."""
    return getattr(getattr(feature, "feature", None), "names", None)


def _named(where: str, value: Any, names: Sequence[str] | None) -> Any:
    return value if names is None else [names_of_labels(where, number, names) for number in value]
