"""Reading the tasks of GLUE (Wang et al. 2019): their official files, and their copy on the hub.

Most tasks have no public test labels: :func:`foretoken.data.readers.raw_files.dev_as_test` says what is measured then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.data.documents import Corpus, Document, is_empty
from foretoken.data.problems import CLASSIFICATION, REGRESSION
from foretoken.data.readers.hub_tables import hub_rows
from foretoken.data.readers.raw_files import dev_as_test, raw_file
from foretoken.data.readers.rows import Row, label_value, names_of_labels
from foretoken.data.tasks.base import OFFICIAL
from foretoken.data.tasks.glue.files import tsv_rows
from foretoken.errors import DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions

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


def read_folder(path: Path | None, options: DataOptions, layout: Layout) -> Corpus:
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
    return arrange(layout, options, train, dev)


def read_mrpc(path: Path | None, options: DataOptions, layout: Layout) -> Corpus:
    """Return MRPC from Microsoft's own files and GLUE's ``dev_ids.tsv``, which have the test labels, or from GLUE's.

    GLUE's dev set is the 408 pairs of ``msr_paraphrase_train.txt`` that ``dev_ids.tsv`` names.

    Raises:
        DataError: as for :func:`read_folder`.
    """
    assert path is not None
    folder = path if path.is_dir() else path.parent
    if not (folder / "msr_paraphrase_train.txt").is_file():
        return read_folder(path, options, layout)
    ids = raw_file(path, ["dev_ids.tsv"], layout.name)
    chosen = {(row["one"], row["other"]) for _, row in tsv_rows(ids, ("one", "other"), header=("one", "other"))}
    rows: dict[bool, list[Row]] = {False: [], True: []}
    for row in tsv_rows(folder / "msr_paraphrase_train.txt", (*layout.needed, "#1 ID", "#2 ID")):
        rows[(row[1]["#1 ID"], row[1]["#2 ID"]) in chosen].append(row)
    train, dev = (_documents(rows[in_dev], layout) for in_dev in (False, True))
    return arrange(layout, options, train, dev, _read(raw_file(path, ["msr_paraphrase_test.txt"], layout.name), layout))


def read_stsb(path: Path | None, options: DataOptions, layout: Layout) -> Corpus:
    """Return STS-B from the files of its authors, which have the test scores (``original/sts-*.tsv``), or from GLUE's.

    Raises:
        DataError: as for :func:`read_folder`.
    """
    assert path is not None
    folder = path if path.is_dir() else path.parent
    for place in (folder / "original", folder):
        if (place / "sts-train.tsv").is_file():
            header = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
            own = replace(layout, header=header)
            names = ("sts-train.tsv", "sts-dev.tsv", "sts-test.tsv")
            train, dev, test = (_read(raw_file(place, [name], layout.name), own) for name in names)
            return arrange(layout, options, train, dev, test)
    return read_folder(path, options, layout)


def read_hub(layout: Layout, options: DataOptions) -> Corpus:
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
    labelled = [row for row in splits.get("test", []) if row[1]["label"] not in (-1, -1.0)]
    return arrange(layout, options, _from_hub(splits["train"], layout), dev, _from_hub(labelled, layout) or None)


def arrange(
    layout: Layout,
    options: DataOptions,
    train: list[Document],
    dev: list[Document],
    test: list[Document] | None = None,
) -> Corpus:
    """Return the corpus with the splits that the option ``split`` asks for."""
    if test is None or options.split == OFFICIAL:
        splits = dev_as_test(layout.name, train, dev, options)
    else:
        splits = {"train": train, "validation": dev, "test": test}
    problem = CLASSIFICATION if layout.labels else REGRESSION
    return Corpus(dict(splits), list(layout.classes) or None, problem)


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
