"""Hyperpartisan News Detection (SemEval-2019 task 4), the by-article training set, from its raw XML."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from foretoken.data.documents import Corpus, Document, is_empty
from foretoken.data.readers.files import read_bytes, read_text
from foretoken.data.readers.text import clean_article, strip_tags
from foretoken.data.splits import near_duplicates
from foretoken.errors import ConfigError, DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions
    from foretoken.data.readers.rows import Row

LABELS = ("mainstream", "hyperpartisan")  # the positive class last, as binary F1 expects it
_ARTICLES = "articles-training-byarticle-*.xml"
_TRUTH = "ground-truth-training-byarticle-*.xml"
_PUBLISHED = {"train": "train", "dev": "validation", "test": "test"}
_CLASS = {"false": LABELS[0], "true": LABELS[1]}
_log = logging.getLogger(__name__)


def read(path: Path | None, options: DataOptions) -> Corpus:
    """Return the articles, in one part (``split: clean``, divided later) or as published (``longformer``).

    The text is the title, a line break, and the article cleaned by :func:`foretoken.data.readers.text.clean_article`.
    Articles that share much of their text form a group, and a clean split never divides a group.

    Raises:
        DataError: a file is missing, is malformed XML, or articles and labels do not match.
    """
    assert path is not None
    folder = path if path.is_dir() else path.parent
    articles = _articles(_one_file(folder, _ARTICLES))
    labels = _labels(_one_file(folder, _TRUTH))
    documents = [_labelled(document, labels) for document in articles]
    names = list(LABELS)
    if options.split == "longformer":
        return Corpus(_published(folder / "hp-splits.json", documents), names)
    return Corpus({"train": _grouped(documents)}, names)


def from_hub_row(row: Row) -> Row:
    """Return a row of the hub data set with the title in front, the text cleaned, and our class names."""
    where, values = row
    text = _text(str(values.get("title") or ""), strip_tags(values["text"] or ""))
    label = values["hyperpartisan"]
    return where, {**values, "text": text, "hyperpartisan": None if label is None else LABELS[int(label)]}


def check_hub(options: DataOptions) -> None:
    """Raise a ConfigError for the published split, whose ids are those of the raw files."""
    if options.split != "clean":
        raise ConfigError("split='longformer' needs the raw files with hp-splits.json: set path to their folder")


class _XmlReader:
    """Collects the articles of one file; every article keeps its line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[tuple[int, dict[str, str], list[str]]] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def read(self) -> list[tuple[str, dict[str, str], str]]:
        """Return (where, attributes, text) of every article."""
        try:
            self.parser.Parse(read_bytes(self.path), True)
        except expat.ExpatError as error:
            raise DataError(
                f"{self.path}:{error.lineno}:{error.offset + 1}: malformed XML: "
                f"{expat.ErrorString(error.code)}; "
                "fetch the file again"
            ) from error
        return [(f"{self.path}:{line}", attributes, "".join(text)) for line, attributes, text in self.found]

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "article":
            self.found.append((self.parser.CurrentLineNumber, attributes, []))
        elif name != "a":  # a link is part of its sentence, every other element stands apart
            self._characters(" ")

    def _end(self, name: str) -> None:
        if name not in ("a", "article"):
            self._characters(" ")

    def _characters(self, text: str) -> None:
        if self.found:
            self.found[-1][2].append(text)


def _one_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise DataError(f"{folder}: no file {pattern}; expected the by-article training set of SemEval-2019 task 4")
    return found[-1]


def _attribute(where: str, attributes: Mapping[str, str], name: str) -> str:
    if not attributes.get(name):
        raise DataError(f"{where}: the article has no attribute {name!r}; it has {', '.join(attributes) or 'none'}")
    return attributes[name]


def _articles(path: Path) -> list[Document]:
    documents: dict[str, Document] = {}
    for where, attributes, body in _XmlReader(path).read():
        key = _attribute(where, attributes, "id")
        if key in documents:
            raise DataError(f"{where}: article id {key!r} was already used at {documents[key].where}")
        documents[key] = Document(key, _text(attributes.get("title", ""), body), None, where)
    kept = [document for document in documents.values() if not is_empty(document)]
    if not kept:
        raise DataError(f"{path}: no articles; expected <articles><article id=... title=...>")
    if len(kept) < len(documents):
        _log.info("hyperpartisan: dropped %d empty of %d articles", len(documents) - len(kept), len(documents))
    return kept


def _text(title: str, body: str) -> str:
    return f"{clean_article(title)}\n{clean_article(body)}".strip()


def _labels(path: Path) -> dict[str, str]:
    labels = {}
    for where, attributes, _ in _XmlReader(path).read():
        value = _attribute(where, attributes, "hyperpartisan")
        if value not in _CLASS:
            raise DataError(f"{where}: hyperpartisan={value!r}, expected 'true' or 'false'")
        labels[_attribute(where, attributes, "id")] = _CLASS[value]
    return labels


def _labelled(document: Document, labels: Mapping[str, str]) -> Document:
    if document.id not in labels:
        raise DataError(f"{document.where}: article {document.id!r} has no label in the ground-truth file")
    return replace(document, label=labels[document.id])


def _grouped(documents: list[Document]) -> list[Document]:
    groups = near_duplicates([document.text for document in documents])
    return [replace(document, group=documents[first].id) for document, first in zip(documents, groups, strict=True)]


def _published(path: Path, documents: list[Document]) -> dict[str, list[Document]]:
    by_number = {_number(document): document for document in documents}
    splits: dict[str, list[Document]] = {}
    for name, numbers in _published_numbers(path).items():
        unknown = sorted(set(numbers) - by_number.keys())
        if unknown:
            raise DataError(f"{path}: split {name!r} names article {unknown[0]}, which the articles file lacks")
        splits[_PUBLISHED[name]] = [by_number[number] for number in numbers]
    seen = {document.id for split in ("train", "validation") for document in splits[split]}
    leaked = sum(document.id in seen for document in splits["test"])
    _log.warning(
        "hyperpartisan: split 'longformer' is kept as published, and %d of its %d test articles are also "
        "in train or "
        "dev: scores on it are too good and serve comparison with the literature only (split: clean has no "
        "such leak)",
        leaked,
        len(splits["test"]),
    )
    return splits


def _number(document: Document) -> int:
    if not re.fullmatch(r"\d+", document.id):
        raise DataError(f"{document.where}: article id {document.id!r} is no number, which hp-splits.json needs")
    return int(document.id)


def _published_numbers(path: Path) -> dict[str, list[int]]:
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; split 'longformer' needs hp-splits.json from the scripts folder of "
            "github.com/allenai/longformer beside the articles"
        )
    try:
        content: Any = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}:{error.colno}: malformed JSON: {error.msg}") from None
    if not isinstance(content, dict) or content.keys() != _PUBLISHED.keys() or not all(map(_is_ids, content.values())):
        raise DataError(f"{path}: expected an object with the lists of numbers train, dev and test")
    return content


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) for number in value)
