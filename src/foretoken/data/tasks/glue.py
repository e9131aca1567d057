"""GLUE's tables of labelled texts or pairs of texts (Wang et al. 2019), and other tables with such columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foretoken.data.documents import Document, Splits, without_empty
from foretoken.data.readers.delimited import delimited_rows
from foretoken.data.readers.files import is_there, read_text
from foretoken.data.readers.formats import FileFormat
from foretoken.data.readers.hub import hub_rows
from foretoken.data.readers.labels import label_value
from foretoken.data.readers.rows import UsableRow, text_value, usable
from foretoken.data.tasks.base import examples_of, raw_file, raw_folder
from foretoken.errors import DataError

HUB = "nyu-mll/glue"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Columns:
    """The columns of a table of labelled texts or pairs of texts.

    Attributes:
        text, text_pair, label: columns; ``text_pair`` None for single texts.
        labels: the class of each published label; empty for regression.
        id: column of ids; None for the number of the row.
        group: column of groups that new splits do not divide.
        header: the columns of a file without a header.
        skip_broken: leave out rows that are broken in the published file.
        on_hub: the columns of the texts on the hub, if they differ.
    """

    text: str
    text_pair: str | None = None
    label: str = "label"
    labels: Mapping[str | int, str] = field(default_factory=dict)
    id: str | None = None
    group: str | None = None
    header: Sequence[str] = ()
    skip_broken: bool = False
    on_hub: Sequence[str] | None = None

    @property
    def needed(self) -> list[str]:
        """The columns that every row must have."""
        return [name for name in (self.text, self.text_pair, self.label, self.id, self.group) if name is not None]


def published(
    classes: Sequence[str], *, numbered: bool = False, on_hub: Sequence[str] | None = None
) -> dict[str | int, str]:
    """Return the class of each published label: its name, or its number in ``numbered`` files.

    The hub has class numbers, in the order of ``on_hub``.
    """
    known: dict[str | int, str] = {str(index) if numbered else name: name for index, name in enumerate(classes)}
    return known | dict(enumerate(on_hub or classes))


def labelled(
    rows: Iterable[UsableRow],
    columns: Columns,
    subset: str | None = None,
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda values: values,
) -> list[Document]:
    """Return the documents of rows, which a function may change; those without text are left out and counted.

    Raises:
        DataError: a value is no text, or a label is not among the published ones.
    """

    def make(where: str, values: Mapping[str, Any], number: int) -> tuple[Document]:
        return (_document(where, change(values), number, columns, subset),)

    return without_empty(examples_of(rows, make), "rows")


def read_glue(path: Path, task: str, columns: Columns, dev: Mapping[str, str | None]) -> Splits:
    """Return the splits of a folder with ``train.tsv`` and the files of ``dev``, each with the name of its part.

    Microsoft's files of MRPC and those of STS-B's authors have the answers of the test, and are read first.

    Raises:
        MissingDataError: a file is missing.
        DataError: a row is not usable; the message names file and line.
    """
    folder = raw_folder(path)
    if is_there(folder / "msr_paraphrase_train.txt"):
        return _read_mrpc(folder, task, columns)
    for base in (folder / "original", folder):
        if is_there(base / "sts-train.tsv"):
            names = {"train": "sts-train.tsv", "validation": "sts-dev.tsv", "test": "sts-test.tsv"}
            header = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
            columns = replace(columns, header=header)
            files = {split: raw_file(base, [name], task) for split, name in names.items()}
            return {split: labelled(_rows(file, columns), columns) for split, file in files.items()}
    parts_of = {raw_file(folder, [name], task): subset for name, subset in {"train.tsv": None, **dev}.items()}
    train, *parts = [labelled(_rows(file, columns), columns, subset) for file, subset in parts_of.items()]
    return {"train": train, "validation": [document for documents in parts for document in documents]}


def _read_mrpc(folder: Path, task: str, columns: Columns) -> Splits:
    """Return MRPC with GLUE's dev set: the 408 pairs of ``msr_paraphrase_train.txt`` that ``dev_ids.tsv`` names."""
    ids = raw_file(folder, ["dev_ids.tsv"], task)
    columns_of_ids = Columns("id1", label="id2", header=("id1", "id2"))
    chosen = {tuple(values.values()) for _, values in _rows(ids, columns_of_ids)}
    rows: dict[bool, list[UsableRow]] = {False: [], True: []}
    for row in _rows(folder / "msr_paraphrase_train.txt", columns):
        rows[(row[1]["#1 ID"], row[1]["#2 ID"]) in chosen].append(row)
    test = _rows(raw_file(folder, ["msr_paraphrase_test.txt"], task), columns)
    splits = {"train": rows[False], "validation": rows[True], "test": test}
    return {split: labelled(pairs, columns) for split, pairs in splits.items()}


def read_glue_on_hub(config: str, columns: Columns, dev: Mapping[str, str | None]) -> Splits:
    """Return the splits of a task from its copy on the hub.

    Raises:
        DataError: the hub cannot be reached, or has other columns.
    """
    text, text_pair = columns.on_hub or (columns.text, columns.text_pair)
    columns = Columns(text, text_pair, labels=columns.labels)
    splits = hub_rows(HUB, config, columns.needed)
    parts = {f"{config}_{subset}": subset for subset in dev.values() if subset is not None}
    tables: dict[str | None, dict[str, list[UsableRow]]]
    tables = {subset: hub_rows(HUB, name, columns.needed) for name, subset in parts.items()} or {None: splits}
    validation = [item for subset, table in tables.items() for item in labelled(table["validation"], columns, subset)]
    test = labelled((row for row in splits.get("test", []) if row[1]["label"] != -1), columns)  # -1: not public
    return {"train": labelled(splits["train"], columns), "validation": validation} | ({"test": test} if test else {})


def _rows(path: Path, columns: Columns) -> Iterator[UsableRow]:
    """Return the rows of a file with tabs between its values and without quotes, by column name.

    Rows of a file without a header may have more values.

    Raises:
        DataError: a column is missing, or a row has too many or too few values; the message names file and line.
    """
    format = FileFormat(delimiter="\t", quoting="none", header=not columns.header)
    rows = list(delimited_rows(path, read_text(path), columns.needed, format, names=columns.header))
    whole = [row for row in rows if not (columns.skip_broken and isinstance(row[1], DataError))]
    if len(whole) < len(rows):
        left_out = len(rows) - len(whole)
        _log.info("%s: left out %d of %d rows, which are broken in the published file", path, left_out, len(rows))
    return usable(whole)


def _document(where: str, values: Mapping[str, object], number: int, columns: Columns, subset: str | None) -> Document:
    name = str(number if columns.id is None else values[columns.id])
    label = values[columns.label]
    return Document(
        id=name if subset is None else f"{subset}/{name}",
        text=text_value(where, values[columns.text], columns.text),
        text_pair=columns.text_pair and text_value(where, values[columns.text_pair], columns.text_pair),
        label=_class(where, label, columns) if columns.labels else None,
        value=None if columns.labels else label_value(where, label, columns.label),
        where=where,
        group=columns.group and str(values[columns.group]),
        part=subset,
    )


def _class(where: str, label: object, columns: Columns) -> str:
    if not isinstance(label, (str, int)) or label not in columns.labels:
        known = [name for name in columns.labels if isinstance(name, str)]
        raise DataError(
            f"{where}: column {columns.label!r} holds {label!r}, expected one of {', '.join(map(repr, known))}; "
            "rows without a label can be neither trained on nor scored"
        )
    return columns.labels[label]
