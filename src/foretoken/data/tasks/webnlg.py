"""WebNLG challenge 2017: sets of triples and texts that express them, from the official XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from foretoken.data.documents import Splits, refuse_repeated_ids
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.archives import raw_files
from foretoken.data.readers.files import as_xml
from foretoken.data.tasks.base import Markers
from foretoken.errors import DataError, MissingDataError

MARKERS = Markers(("<bos_webnlg>", "<subject>", "<property>", "<object>"), "<target_webnlg>", "<eos_webnlg>")
_SEEN = {"Airport", "Astronaut", "Building", "City", "ComicsCharacter"}
_SEEN |= {"Food", "Monument", "SportsTeam", "University", "WrittenWork"}
_FOLDERS = {"train": "train", "dev": "validation"}
_TEST = "testdata_with_lex.xml"
_ARCHIVE = "webnlg_challenge_2017.tar*"


def read(path: Path, _: DataOptions) -> Splits:
    """Return the entries with all their texts as references; test entries have the part ``seen`` or ``unseen``.

    ``path`` is the archive, or a folder with it or its content. Sources are those of :func:`linearise`; triples
    and texts are not changed (underscores, quotes).

    Raises:
        MissingDataError: a split has no entries.
        DataError: the XML is malformed, or an entry has no triples or no text.
    """
    splits: dict[str, list[GenerationExample]] = {"train": [], "validation": [], "test": []}
    for name, where, content in raw_files(path, _ARCHIVE, lambda name: name.suffix == ".xml"):
        split = _split(name)
        if split is not None:
            splits[split].extend(_examples(where, name.stem, content, parts=split == "test"))
    for split, examples in splits.items():
        if not examples:
            raise MissingDataError(
                f"{path}: no entries for {split}; expected {_ARCHIVE}, or its folders train and dev, and test/{_TEST}"
                "; see `foretoken tasks`"
            )
        refuse_repeated_ids(examples)
    return splits


def linearise(triples: Iterable[tuple[str, str, str]]) -> str:
    """Return triples as the source text of Chen et al. (2022, Table 4), with a marker before every item of a triple.

    >>> linearise([("Ajoblanco", "country", "Spain")])
    '<bos_webnlg> <subject> Ajoblanco <property> country <object> Spain'
    """
    start, *markers = MARKERS.source
    parts = (f"{marker} {text}" for triple in triples for marker, text in zip(markers, triple, strict=True))
    return " ".join((start, *parts))


def _examples(where: str, file: str, content: bytes, *, parts: bool) -> Iterator[GenerationExample]:
    for number, entry in enumerate(as_xml(where, content).iter("entry"), start=1):
        here = f"{where}:entry {number}"
        triples = [_triple(here, text) for text in _texts(entry, "mtriple")]
        texts = _texts(entry, "lex")
        if not triples:
            raise DataError(f"{here}: no <mtriple>; expected at least one triple")
        if not texts or not all(texts):
            raise DataError(f"{here}: {'an empty' if texts else 'no'} <lex>; expected its texts")
        if not entry.get("eid") or not entry.get("category"):
            raise DataError(f"{here}: no eid or category; the entry has {', '.join(entry.keys()) or 'none'}")
        subset = ("seen" if entry.get("category") in _SEEN else "unseen") if parts else None
        yield GenerationExample(f"{file}/{entry.get('eid')}", linearise(triples), tuple(texts), here, part=subset)


def _texts(entry: ElementTree.Element, name: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in entry.iter(name)]


def _triple(where: str, text: str) -> tuple[str, str, str]:
    parts = text.split(" | ")
    if len(parts) != 3:
        raise DataError(f"{where}: the triple {text!r} has {len(parts)} parts, expected 'subject | property | object'")
    return parts[0], parts[1], parts[2]


def _split(name: PurePosixPath) -> str | None:
    if name.name == _TEST:
        return "test"
    return next((_FOLDERS[part] for part in name.parts[:-1] if part in _FOLDERS), None)
