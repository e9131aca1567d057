"""Reading the tasks of GLUE (Wang et al. 2019): their official files, and their copy on the hub."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from foretoken.data.documents import Document, Splits, is_empty
from foretoken.data.readers.files import is_there, read_text
from foretoken.data.readers.hub import hub_rows
from foretoken.data.readers.rows import Row, check_columns, label_value, names_of_labels
from foretoken.data.tasks.base import raw_file, raw_folder
from foretoken.errors import DataError

HUB = "nyu-mll/glue"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """How the files of a task are laid out.

    Attributes:
        name: of the task, which is also its configuration on the hub.
        text, text_pair, label: columns; ``text_pair`` None for single sentences.
        labels: the class of each published label, in order; none for regression.
        dev: the files of the dev set, and the part of it that each is; None where it has no parts.
        header: the columns, where the files do not name them.
        group: a column whose equal values never straddle the splits made here.
        skip_broken: leave out rows that are broken in the published files.
        hub: columns that have another name on the hub.
        hub_labels: the classes in the hub's order, where it is another one.
        hub_dev: the configurations that hold the dev set, and the part of it that each is.
    """

    name: str
    text: str
    text_pair: str | None
    labels: Mapping[str, str]
    label: str = "label"
    dev: Mapping[str, str | None] = field(default_factory=lambda: {"dev.tsv": None})
    header: tuple[str, ...] | None = None
    group: str | None = None
    skip_broken: bool = False
    hub: Mapping[str, str] = field(default_factory=dict)
    hub_labels: tuple[str, ...] = ()
    hub_dev: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def needed(self) -> list[str]:
        """The columns that every row must have."""
        return [name for name in (self.text, self.text_pair, self.label, self.group) if name is not None]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in order; none for regression."""
        return tuple(dict.fromkeys(self.labels.values()))


def read_folder(path: Path, layout: Layout) -> Splits:
    """Return the sentences, or pairs of them, of a task's folder with ``train.tsv`` and its dev files.

    Raises:
        DataError: a file is missing, or a row is not usable; the message names file and line.
    """
    train = _read(raw_file(path, ["train.tsv"], layout.name), layout)
    dev = [
        document
        for file, part in layout.dev.items()
        for document in _read(raw_file(path, [file], layout.name), layout, part)
    ]
    return {"train": train, "validation": dev}


def read_mrpc(path: Path, layout: Layout) -> Splits:
    """Return MRPC from Microsoft's own files and GLUE's ``dev_ids.tsv``, which have the test labels, or from GLUE's.

    GLUE's dev set is the 408 pairs of ``msr_paraphrase_train.txt`` that ``dev_ids.tsv`` names.

    Raises:
        DataError: as for :func:`read_folder`.
    """
    train = raw_folder(path) / "msr_paraphrase_train.txt"
    if not is_there(train):
        return read_folder(path, layout)
    ids = raw_file(path, ["dev_ids.tsv"], layout.name)
    chosen = {(row["one"], row["other"]) for _, row in tsv_rows(ids, ("one", "other"), header=("one", "other"))}
    rows: dict[bool, list[Row]] = {False: [], True: []}
    for row in tsv_rows(train, (*layout.needed, "#1 ID", "#2 ID")):
        rows[(row[1]["#1 ID"], row[1]["#2 ID"]) in chosen].append(row)
    test = _read(raw_file(path, ["msr_paraphrase_test.txt"], layout.name), layout)
    return {"train": _documents(rows[False], layout), "validation": _documents(rows[True], layout), "test": test}


def read_stsb(path: Path, layout: Layout) -> Splits:
    """Return STS-B from the files of its authors, which have the test scores (``original/sts-*.tsv``), or from GLUE's.

    Raises:
        DataError: as for :func:`read_folder`.
    """
    folder = raw_folder(path)
    header = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
    for place in (folder / "original", folder):
        if is_there(place / "sts-train.tsv"):
            names = {"train": "sts-train.tsv", "validation": "sts-dev.tsv", "test": "sts-test.tsv"}
            own = replace(layout, header=header)
            return {split: _read(raw_file(place, [name], layout.name), own) for split, name in names.items()}
    return read_folder(path, layout)


def read_hub(layout: Layout) -> Splits:
    """Return what the files of a task hold, from its copy on the hub.

    Raises:
        DataError: the hub is out of reach, or has other columns.
    """
    needed = [layout.hub.get(name, name) for name in (layout.text, layout.text_pair) if name is not None]
    splits = hub_rows(HUB, layout.name, [*needed, "label"])
    parts = {part: hub_rows(HUB, config, [*needed, "label"]) for config, part in layout.hub_dev.items()}
    dev = [
        document
        for part, tables in (parts or {None: splits}).items()
        for document in _from_hub(tables["validation"], layout, part)
    ]
    found = {"train": _from_hub(splits["train"], layout), "validation": dev}
    labelled = [row for row in splits.get("test", []) if row[1]["label"] not in (-1, -1.0)]
    return found | ({"test": _from_hub(labelled, layout)} if labelled else {})


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
    names = header or (lines.pop(0)[1].split("\t") if lines else [])
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


def _read(path: Path, layout: Layout, part: str | None = None) -> list[Document]:
    rows = tsv_rows(path, layout.needed, header=layout.header, skip_broken=layout.skip_broken)
    return _documents(rows, layout, part)


def _from_hub(rows: Iterable[Row], layout: Layout, part: str | None = None) -> list[Document]:
    classes = layout.hub_labels or layout.classes
    own = replace(layout, labels={name: name for name in layout.classes}, label="label", group=None)
    return _documents((_renamed(row, own, classes) for row in rows), own, part)


def _renamed(row: Row, layout: Layout, classes: tuple[str, ...]) -> Row:
    """Return a row of the hub under the columns of the files, its class number as a name."""
    where, values = row
    texts = {name: values[layout.hub.get(name, name)] for name in (layout.text, layout.text_pair) if name is not None}
    return where, {**texts, "label": names_of_labels(where, values["label"], classes or None)}


def _documents(rows: Iterable[Row], layout: Layout, part: str | None = None) -> list[Document]:
    found = [_document(where, values, number, layout, part) for number, (where, values) in enumerate(rows)]
    kept = [document for document in found if not is_empty(document)]
    if len(kept) < len(found):
        _log.info("%s: left out %d of %d rows, whose text is empty", layout.name, len(found) - len(kept), len(found))
    return kept


def _document(where: str, values: Mapping[str, str], number: int, layout: Layout, part: str | None) -> Document:
    raw = values[layout.label]
    return Document(
        id=str(number) if part is None else f"{part}/{number}",
        text=values[layout.text],
        text_pair=layout.text_pair and values[layout.text_pair],
        label=_class(where, raw, layout) if layout.labels else None,
        value=None if layout.labels else label_value(where, raw, layout.label),
        where=where,
        group=layout.group and values[layout.group],
        part=part,
    )


def _class(where: str, raw: str, layout: Layout) -> str:
    if raw not in layout.labels:
        raise DataError(
            f"{where}: column {layout.label!r} holds {raw!r}, expected one of {', '.join(map(repr, layout.labels))}; "
            "rows without a label can be neither trained on nor scored"
        )
    return layout.labels[raw]
