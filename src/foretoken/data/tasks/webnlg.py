"""WebNLG challenge 2017: sets of triples and the texts that say them, from the official XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from xml.parsers import expat

from foretoken.data.documents import Corpus, refuse_repeated_ids
from foretoken.data.examples import Generation
from foretoken.data.problems import GENERATION
from foretoken.data.readers.files import read_bytes
from foretoken.data.tasks.generation import Markers
from foretoken.errors import DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions

MARKERS = Markers(("<bos_webnlg>", "<subject>", "<property>", "<object>"), "<target_webnlg>", "<eos_webnlg>")
SEEN = (
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


def read(path: Path | None, _: DataOptions) -> Corpus:
    """Return the entries with all their texts as references; test entries are of part ``seen`` or ``unseen``.

    ``path`` is the archive, or a folder with it or its content. Sources are those of :func:`linearise`; triples
    and texts stay as published (underscores, quotes).

    Raises:
        DataError: a file is missing, is malformed XML, or an entry has no triples or no text.
    """
    assert path is not None
    splits: dict[str, list[Generation]] = {"train": [], "validation": [], "test": []}
    for where, name, content in _files(path):
        split = _split(name)
        if split is not None:
            splits[split].extend(_examples(where, name.stem, content, parts=split == "test"))
    for split, examples in splits.items():
        if not examples:
            raise DataError(
                f"{path}: no entries for {split}; expected the folders train and dev, and test/{_TEST}, of the "
                "WebNLG challenge 2017"
            )
        refuse_repeated_ids(examples)
    return Corpus(dict(splits), problem=GENERATION)


def linearise(triples: Iterable[tuple[str, str, str]]) -> str:
    """Return triples as the source text of Chen et al. (2022, Table 4): a marker before every part of every triple.

    >>> linearise([("Ajoblanco", "country", "Spain")])
    '<bos_webnlg> <subject> Ajoblanco <property> country <object> Spain'
    """
    start, *markers = MARKERS.source
    parts = (f"{marker} {text}" for triple in triples for marker, text in zip(markers, triple, strict=True))
    return " ".join((start, *parts))


@dataclass
class _Entry:
    line: int
    attributes: dict[str, str]
    triples: list[tuple[str, str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class _XmlReader:
    """Collects the entries of one file; every entry keeps its line."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.entries: list[_Entry] = []
        self.text: list[str] | None = None  # of the element that is being read, if its text matters
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def read(self, content: bytes) -> list[_Entry]:
        """Return the entries."""
        try:
            self.parser.Parse(content, True)
        except expat.ExpatError as error:
            raise DataError(
                f"{self.where}:{error.lineno}:{error.offset + 1}: malformed XML: {expat.ErrorString(error.code)}; "
                "fetch the file again"
            ) from error
        return self.entries

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "entry":
            self.entries.append(_Entry(self.parser.CurrentLineNumber, attributes))
        elif name in ("mtriple", "lex") and self.entries:
            self.text = []

    def _end(self, name: str) -> None:
        if self.text is None or name not in ("mtriple", "lex"):
            return
        text, self.text = "".join(self.text).strip(), None
        if name == "lex":
            self.entries[-1].texts.append(text)
        else:
            self.entries[-1].triples.append(self._triple(text))

    def _characters(self, text: str) -> None:
        if self.text is not None:
            self.text.append(text)

    def _triple(self, text: str) -> tuple[str, str, str]:
        parts = text.split(" | ")
        if len(parts) != 3:
            raise DataError(
                f"{self.where}:{self.parser.CurrentLineNumber}: the triple {text!r} has {len(parts)} parts, expected "
                "'subject | property | object'"
            )
        return parts[0], parts[1], parts[2]


def _examples(where: str, file: str, content: bytes, *, parts: bool) -> Iterator[Generation]:
    for entry in _XmlReader(where).read(content):
        here = f"{where}:{entry.line}"
        if not entry.triples:
            raise DataError(f"{here}: the entry has no <mtriple>; expected at least one triple")
        if not entry.texts or not all(entry.texts):
            raise DataError(f"{here}: the entry has {'an empty' if entry.texts else 'no'} <lex>; expected its texts")
        if not entry.attributes.get("eid") or not entry.attributes.get("category"):
            raise DataError(f"{here}: the entry lacks eid or category; it has {', '.join(entry.attributes) or 'none'}")
        part = ("seen" if entry.attributes["category"] in SEEN else "unseen") if parts else None
        name = f"{file}/{entry.attributes['eid']}"
        yield Generation(name, linearise(entry.triples), tuple(entry.texts), here, part=part)


def _split(name: PurePosixPath) -> str | None:
    if name.name == _TEST:
        return "test"
    return next((_FOLDERS[part] for part in name.parts[:-1] if part in _FOLDERS), None)


def _files(path: Path) -> Iterator[tuple[str, PurePosixPath, bytes]]:
    """Yield (where, relative name, content) of the XML files, in the order of their names."""
    if path.is_file():
        yield from _archived(path)
        return
    found = sorted(file for file in path.rglob("*.xml") if file.is_file())
    for file in found:
        yield str(file), PurePosixPath(file.relative_to(path).as_posix()), read_bytes(file)
    if not found:
        yield from _archived(_archive(path))


def _archive(folder: Path) -> Path:
    archives: Sequence[Path] = sorted(folder.glob(_ARCHIVE))
    if not archives:
        raise DataError(f"{folder}: neither {_ARCHIVE} nor its XML files are here; see `foretoken tasks`")
    return archives[0]


def _archived(archive: Path) -> Iterator[tuple[str, PurePosixPath, bytes]]:
    import lzma
    import tarfile
    import zlib

    try:
        with tarfile.open(archive, mode="r:*") as tar:
            members = [(PurePosixPath(member.name), tar.extractfile(member)) for member in tar if member.isfile()]
            contents = [(name, file.read()) for name, file in members if file is not None and name.suffix == ".xml"]
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise DataError(f"{archive}: the archive is damaged or no tar archive ({error}); fetch it again") from error
    for name, content in sorted(contents):
        yield f"{archive}:{name}", name, content
