"""Reuters-21578, newswire of 1987 with any number of topics per document: the ModApte split, from its SGML files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from foretoken.data.documents import Document, Splits
from foretoken.data.options import DataOptions
from foretoken.data.readers.archives import raw_files
from foretoken.errors import MissingDataError

LABELLED = "labelled"  # without documents that have none of the topics, as in many papers
_PARTS = {"TRAIN": "train", "TEST": "test"}
_DOCUMENT = re.compile(r"<REUTERS (?P<head>[^>]*)>(?P<content>.*?)</REUTERS>", re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_TOPICS = re.compile(r"<TOPICS>(.*?)</TOPICS>", re.DOTALL)
_TOPIC = re.compile(r"<D>(.*?)</D>")
_TEXT = re.compile(r"<TEXT[^>]*>(.*?)</TEXT>", re.DOTALL)
_TITLE_OR_BODY = re.compile(r"<(TITLE|BODY)>(.*?)</\1>", re.DOTALL)
_CONTROLS = re.compile(r"&#\d+;|[\x00-\x08\x0b-\x1f\x7f]")


def read(path: Path, options: DataOptions) -> Splits:
    """Return the documents of the ModApte split: those with ``TOPICS="YES"``, in Lewis's train and test parts.

    Their labels are the topics that occur in both parts, 90 of them; a document may have none. ``path`` is the archive
    (reuters21578*.tar.*), or a folder with it or its files. A document's text is its title and body.

    Raises:
        MissingDataError: there are no files.
        DataError: the archive is damaged.
    """
    splits: dict[str, list[Document]] = {"train": [], "test": []}
    for _, where, content in raw_files(path, "reuters21578*.tar*", lambda name: name.suffix == ".sgm"):
        for split, document in _documents(where, content.decode("latin-1")):
            splits[split].append(document)
    if not all(splits.values()):
        raise MissingDataError(
            f"{path}: no documents of the ModApte split in files *.sgm, and no archive reuters21578.tar.* with them"
        )
    common = set.intersection(
        *({topic for item in documents for topic in item.classes} for documents in splits.values())
    )
    kept = {
        split: [replace(item, labels=tuple(topic for topic in item.classes if topic in common)) for item in documents]
        for split, documents in splits.items()
    }
    if options.split == LABELLED:
        return {split: [item for item in documents if item.labels] for split, documents in kept.items()}
    return kept


def _documents(where: str, content: str) -> Iterator[tuple[str, Document]]:
    for match in _DOCUMENT.finditer(content):
        attributes = dict(_ATTRIBUTE.findall(match["head"]))
        split = _PARTS.get(attributes.get("LEWISSPLIT", ""))
        if split is None or attributes.get("TOPICS") != "YES":
            continue
        topics, text = (pattern.search(match["content"]) for pattern in (_TOPICS, _TEXT))
        labels = tuple(dict.fromkeys(_TOPIC.findall(topics[1]))) if topics else ()
        number = attributes["NEWID"]
        yield split, Document(number, _plain(text[1] if text else ""), None, f"{where}#{number}", labels=labels)


def _plain(text: str) -> str:
    r"""Return title and body without markup; the whole text if it has neither.

    >>> _plain("<TITLE>Corn &lt;X></TITLE><DATELINE>a</DATELINE><BODY>b&#3;</BODY>")
    'Corn <X>\nb'
    """
    parts = [content for _, content in _TITLE_OR_BODY.findall(text)] or [re.sub(r"<[^>]*>", "", text)]
    return "\n".join(html.unescape(_CONTROLS.sub("", content)).strip() for content in parts)
