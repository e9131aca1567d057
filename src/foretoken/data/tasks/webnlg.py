"""WebNLG challenge 2017: sets of triples and the texts that say them, from the official XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from foretoken.data.documents import Splits, refuse_repeated_ids
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.problems import GENERATION
from foretoken.data.readers.archives import tar_files
from foretoken.data.readers.files import is_folder, read_bytes
from foretoken.data.readers.xml_events import END, START, TEXT, xml_events
from foretoken.data.tasks.base import Markers, Task
from foretoken.errors import DataError, MissingDataError

_MARKERS = Markers(("<bos_webnlg>", "<subject>", "<property>", "<object>"), "<target_webnlg>", "<eos_webnlg>")
_SEEN = (
    "Airport",
    "Astronaut",
    "Building",
    "City",
    "ComicsCharacter",
    "Food",
    "Monument",
    "SportsTeam",
    "University",
    "WrittenWork",
)
_FOLDERS = {"train": "train", "dev": "validation"}
_TEST = "testdata_with_lex.xml"
_ARCHIVE = "webnlg_challenge_2017.tar*"


def read(path: Path, _: DataOptions) -> Splits:
    """Return the entries with all their texts as references; test entries are of part ``seen`` or ``unseen``.

    ``path`` is the archive, or a folder with it or its content. Sources are those of :func:`linearise`; triples
    and texts stay as published (underscores, quotes).

    Raises:
        DataError: a file is missing, is malformed XML, or an entry has no triples or no text.
    """
    splits: dict[str, list[GenerationExample]] = {"train": [], "validation": [], "test": []}
    for where, name, content in _files(path):
        split = _split(name)
        if split is not None:
            splits[split].extend(_examples(where, name.stem, content, parts=split == "test"))
    for split, examples in splits.items():
        if not examples:
            raise MissingDataError(
                f"{path}: no entries for {split}; expected the folders train and dev, and test/{_TEST}, of the "
                "WebNLG challenge 2017"
            )
        refuse_repeated_ids(examples)
    return splits


def linearise(triples: Iterable[tuple[str, str, str]]) -> str:
    """Return triples as the source text of Chen et al. (2022, Table 4): a marker before every part of every triple.

    >>> linearise([("Ajoblanco", "country", "Spain")])
    '<bos_webnlg> <subject> Ajoblanco <property> country <object> Spain'
    """
    start, *markers = _MARKERS.source
    parts = (f"{marker} {text}" for triple in triples for marker, text in zip(markers, triple, strict=True))
    return " ".join((start, *parts))


@dataclass
class _Entry:
    line: int
    attributes: Mapping[str, str]
    triples: list[tuple[str, str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def _entries(where: str, content: bytes) -> list[_Entry]:
    entries: list[_Entry] = []
    text: list[str] | None = None  # of the element that is being read, if its text matters
    for kind, line, value, attributes in xml_events(where, content):
        if kind == START and value == "entry":
            entries.append(_Entry(line, attributes))
        elif kind == START and value in ("mtriple", "lex") and entries:
            text = []
        elif kind == TEXT and text is not None:
            text.append(value)
        elif kind == END and text is not None and value in ("mtriple", "lex"):
            if value == "lex":
                entries[-1].texts.append("".join(text).strip())
            else:
                entries[-1].triples.append(_triple(f"{where}:{line}", "".join(text).strip()))
            text = None
    return entries


def _triple(where: str, text: str) -> tuple[str, str, str]:
    parts = text.split(" | ")
    if len(parts) != 3:
        raise DataError(f"{where}: the triple {text!r} has {len(parts)} parts, expected 'subject | property | object'")
    return parts[0], parts[1], parts[2]


def _examples(where: str, file: str, content: bytes, *, parts: bool) -> Iterator[GenerationExample]:
    for entry in _entries(where, content):
        here = f"{where}:{entry.line}"
        if not entry.triples:
            raise DataError(f"{here}: the entry has no <mtriple>; expected at least one triple")
        if not entry.texts or not all(entry.texts):
            raise DataError(f"{here}: the entry has {'an empty' if entry.texts else 'no'} <lex>; expected its texts")
        if not entry.attributes.get("eid") or not entry.attributes.get("category"):
            raise DataError(f"{here}: the entry lacks eid or category; it has {', '.join(entry.attributes) or 'none'}")
        part = ("seen" if entry.attributes["category"] in _SEEN else "unseen") if parts else None
        name = f"{file}/{entry.attributes['eid']}"
        yield GenerationExample(name, linearise(entry.triples), tuple(entry.texts), here, part=part)


def _split(name: PurePosixPath) -> str | None:
    if name.name == _TEST:
        return "test"
    return next((_FOLDERS[part] for part in name.parts[:-1] if part in _FOLDERS), None)


def _files(path: Path) -> Iterator[tuple[str, PurePosixPath, bytes]]:
    """Yield (where, relative name, content) of the XML files, in the order of their names."""
    found = sorted(path.rglob("*.xml")) if is_folder(path) else []
    for file in found:
        yield str(file), PurePosixPath(file.relative_to(path).as_posix()), read_bytes(file)
    if not found:
        archive = _archive(path) if is_folder(path) else path
        for name, content in tar_files(archive, lambda name: name.suffix == ".xml"):
            yield f"{archive}:{name}", name, content


def _archive(folder: Path) -> Path:
    archives = sorted(folder.glob(_ARCHIVE))
    if not archives:
        raise MissingDataError(f"{folder}: neither {_ARCHIVE} nor its XML files are here; see `foretoken tasks`")
    return archives[0]


TASK = Task(
    name="webnlg",
    title="WebNLG challenge 2017",
    summary="Text from sets of one to seven triples of DBpedia; the test is also scored by seen and unseen categories.",
    metric="bleu",
    sizes="6,940 / 872 / 1,862",
    source="webnlg_challenge_2017, https://gitlab.com/shimorina/webnlg-dataset (or its copy "
    "https://github.com/fuzihaofzh/webnlg-dataset)",
    licence="CC BY-NC-SA 4.0",
    reader=read,
    hub=None,  # the copy there mixes the three test files
    problem=GENERATION,
    markers=_MARKERS,
)
