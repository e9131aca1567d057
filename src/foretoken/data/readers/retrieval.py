"""Queries with the passages that answer them, from tables of a row per pair or triple; and passages to search."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foretoken.data.documents import refuse_repeated_ids
from foretoken.data.examples import RetrievalExample
from foretoken.data.readers.files import local_path
from foretoken.data.readers.rows import NEGATIVE, PASSAGE, QUERY, ColumnNames, Row, filled, row_id
from foretoken.data.readers.tables import read_rows
from foretoken.data.splits import together
from foretoken.errors import DataError

_log = logging.getLogger(__name__)


@dataclass
class _Query:
    """What the rows of one query say together; dictionaries are sets that keep their order."""

    id: str
    where: str
    passages: dict[str, None] = field(default_factory=dict)
    negatives: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Passages:
    """Passages to search, each text once.

    Attributes:
        ids: of the rows that have them first.
        texts: the passages.
    """

    ids: list[str]
    texts: list[str]


def retrieval_from_rows(source: Path | str, rows: Iterable[Row], columns: ColumnNames) -> list[RetrievalExample]:
    """Return the queries of a table, each once, with the passages and negatives of all its rows.

    ``passage`` and ``negative`` hold a text or a list of texts. Queries that share a passage form a group, which
    splits that are made here do not part. Without ``columns.label`` passages are not read.

    Raises:
        DataError: no rows, a value that is no text, an empty one, or a repeated id.
    """
    found: dict[str, _Query] = {}
    count = 0
    for number, (where, values) in enumerate(rows):
        count += 1
        query = filled(where, values[QUERY], QUERY)
        one = found.setdefault(query, _Query(row_id(where, values, number), where))
        if columns.label is not None:
            one.passages |= dict.fromkeys(_texts(where, values[PASSAGE], PASSAGE))
            one.negatives |= dict.fromkeys(_negatives(where, values))
    if not found:
        raise DataError(f"{source}: has no queries; expected at least one row of data")
    if count > len(found):
        _log.info("%s: %d rows of %d different queries; the rows of a query are read as one", source, count, len(found))
    examples = _examples(found, source)
    refuse_repeated_ids(examples)
    return examples


def read_passages(path: str | Path) -> Passages:
    r"""Return the passages of a file: the column ``passage``, and the column ``id`` or the number of the row.

    Raises:
        DataError: the file, a row or a value is not usable; the message names file and line.

    >>> file = getfixture("tmp_path") / "corpus.csv"
    >>> _ = file.write_text("id,passage\na,Rome is in Italy.\nb,Lyon is in France.\nc,Rome is in Italy.\n")
    >>> read_passages(file)
    Passages(ids=['a', 'b'], texts=['Rome is in Italy.', 'Lyon is in France.'])
    """
    path = local_path(path)
    found: dict[str, str] = {}
    for number, (where, values) in enumerate(read_rows(path, (PASSAGE,))):
        for text in _texts(where, values[PASSAGE], PASSAGE):
            found.setdefault(text, row_id(where, values, number))
    if not found:
        raise DataError(f"{path}: has no passages; expected at least one row of data")
    return Passages(list(found.values()), list(found))


def read_texts(path: str | Path, column: str) -> list[str]:
    """Return the texts of a column of a file, in the order of its rows.

    Raises:
        DataError: the file, a row or a value is not usable; the message names file and line.
    """
    path = local_path(path)
    texts = [filled(where, values[column], column) for where, values in read_rows(path, (column,))]
    if not texts:
        raise DataError(f"{path}: has no rows; expected at least one text")
    return texts


def _examples(found: Mapping[str, _Query], source: Path | str) -> list[RetrievalExample]:
    pairs = [(query, passage) for query, one in found.items() for passage in one.passages or [query]]
    keys = dict(zip([query for query, _ in pairs], together(*map(list, zip(*pairs, strict=True))), strict=True))
    wrong = sum(len(one.passages.keys() & one.negatives.keys()) for one in found.values())
    if wrong:
        _log.warning("%s: %d negatives are right passages of their own query; they are left out", source, wrong)
    return [
        RetrievalExample(
            one.id,
            query,
            tuple(one.passages),
            tuple(text for text in one.negatives if text not in one.passages),
            one.where,
            group=keys[query] if one.passages else None,
        )
        for query, one in found.items()
    ]


def _texts(where: str, value: object, column: str) -> Sequence[str]:
    if not isinstance(value, list | tuple):
        return (filled(where, value, column),)
    if not value:
        raise DataError(f"{where}: column {column!r} holds an empty list, expected at least one text")
    return [filled(where, text, column) for text in value]


def _negatives(where: str, values: Mapping[str, object]) -> Sequence[str]:
    """Return the negatives of a row, which may have none."""
    given = values.get(NEGATIVE)
    return () if given is None or given in ("", []) else _texts(where, given, NEGATIVE)
