"""A task that needs no download: the documentation of installed scientific packages, labelled by topic.

Docstrings are read from the packages' source files (nothing is imported), stripped of everything that names a
package, a module or a topic, rid of repeated paragraphs, and joined with their neighbours to long documents.
All documents of one source file are in one split. The same installed versions give the same documents.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from foretoken.data.documents import SPLITS, Document, Splits
from foretoken.data.options import DataOptions
from foretoken.data.splits import digest
from foretoken.data.tasks.base import Task
from foretoken.data.tasks.pydocs.cache import read_cached, write_cached
from foretoken.data.tasks.pydocs.sources import EXCLUDED_FOLDERS, PACKAGES, SOURCES
from foretoken.data.tasks.pydocs.text import Piece, file_pieces, mask_new
from foretoken.errors import DataError

LABELS = tuple(sorted(SOURCES))
SHORTEST, LONGEST = 300, 3000  # words per document, roughly
PER_FILE, PER_TOPIC = 8, 120  # documents, so that no file and no topic dominates
FILES_PER_TOPIC = 240  # read at most; reading is what takes the time
SHARES = {"test": 0.15, "validation": 0.15}
FEWEST = 8  # documents per topic, below which the task says nothing
_Unit = tuple[str, list[str]]  # the first source file's path, and the documents made of it and its neighbours


def read(_: Path, __: DataOptions) -> Splits:
    """Return the documents of the installed packages, from the cache where they are there.

    Raises:
        DataError: so few of the packages have their source files that a topic is missing.
    """
    documents = read_cached()
    if documents is None:
        documents = build()
        write_cached(documents)
    return {split: [document for document in documents if document.group == split] for split in SPLITS}


def build(roots: dict[str, Path] | None = None) -> list[Document]:
    """Return all documents; ``roots`` maps packages to their folders (default: those installed).

    The split is in ``group``: the cache needs it, and given splits make no use of groups.
    """
    roots = installed() if roots is None else roots
    seen: set[str] = set()  # paragraphs of all topics: a text may appear once
    seen_masked: set[str] = set()  # texts that differed in a masked name only
    documents: list[Document] = []
    with _no_garbage_collection():
        for topic, paths in SOURCES.items():
            files = [(name, file_pieces(file, seen)) for name, file in _files(paths, roots)]
            documents.extend(_topic_documents(topic, _units(files), seen_masked))
    _refuse_small_topics(documents, roots)
    return documents


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Halve the time: syntax trees are many objects, which the collector would visit again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def installed() -> dict[str, Path]:
    """Return the folders of the packages that are installed, without importing them."""
    from importlib.util import find_spec

    folders = {}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders[package] = Path(next(iter(spec.submodule_search_locations)))
    return folders


def _files(paths: Iterable[str], roots: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield (path from the package on, file), sorted, each once; a fixed choice where there are many."""
    found: dict[str, Path] = {}
    for path in paths:
        package, _, rest = path.partition("/")
        root = roots.get(package)
        if root is None:
            continue
        for place in root.glob(rest) if rest else [root]:
            for file in place.rglob("*.py") if place.is_dir() else [place]:
                relative = file.relative_to(root)
                if EXCLUDED_FOLDERS.isdisjoint(relative.parts):
                    found[f"{package}/{relative.as_posix()}"] = file
    chosen = sorted(found, key=digest)[:FILES_PER_TOPIC]
    yield from ((name, found[name]) for name in sorted(chosen))


def _units(files: Iterable[tuple[str, list[Piece]]]) -> Iterator[_Unit]:
    """Join files of one folder until they make a document, and cut what they hold into documents."""
    first = ""
    pieces: list[Piece] = []
    for name, own in files:
        if not own:
            continue
        if pieces and name.rsplit("/", 1)[0] != first.rsplit("/", 1)[0]:
            pieces = []  # what is left of a folder is too short for a document
        first = name if not pieces else first
        pieces = [*pieces, *own]
        if sum(piece.words for piece in pieces) >= SHORTEST:
            yield first, list(_cut(first, pieces))
            pieces = []


def _cut(name: str, pieces: list[Piece]) -> Iterator[str]:
    """Yield documents of neighbouring pieces, of lengths that spread evenly in logarithm."""
    left = sum(piece.words for piece in pieces)
    current: list[str] = []
    words = count = 0
    for index, piece in enumerate(pieces):
        current.append(piece.text)
        words += piece.words
        left -= piece.words
        spread = int(digest(name, count)[:8], 16) / 0xFFFFFFFF
        full = words >= SHORTEST * (LONGEST / SHORTEST) ** spread
        if left >= SHORTEST and words >= SHORTEST and words + pieces[index + 1].words > LONGEST:
            full = True
        if left == 0 or (full and left >= SHORTEST):
            yield "\n".join(current)
            current, words, count = [], 0, count + 1


def _topic_documents(topic: str, units: Iterable[_Unit], seen: set[str]) -> list[Document]:
    """Return the topic's documents, with whole units in each split, up to PER_TOPIC."""
    documents: list[Document] = []
    sizes: Counter[str] = Counter()
    for name, texts in sorted(units, key=lambda unit: digest(unit[0])):
        kept = texts[:PER_FILE]
        if len(documents) + len(kept) > PER_TOPIC:
            continue
        total = len(documents) + len(kept)
        behind = max(SHARES, key=lambda split: SHARES[split] * total - sizes[split])
        split = behind if SHARES[behind] * total - sizes[behind] >= len(kept) / 2 else "train"
        sizes[split] += len(kept)
        documents.extend(
            Document(f"{name}#{number}", mask_new(text, seen), topic, name, group=split)
            for number, text in enumerate(kept)
        )
    return documents


def _refuse_small_topics(documents: list[Document], roots: dict[str, Path]) -> None:
    counts = Counter((str(document.label), document.group) for document in documents)
    for topic in LABELS:
        total = sum(counts[topic, split] for split in ("train", *SHARES))
        if total < FEWEST or not all(counts[topic, split] for split in ("train", *SHARES)):
            absent = sorted(set(PACKAGES) - roots.keys())
            missing = f"; not installed: {', '.join(absent)}" if absent else ""
            raise DataError(
                f"task 'pydocs': topic {topic!r} has {total} documents, expected at least {FEWEST} in three splits"
                f"{missing}; install foretoken's dependencies with their source files (.py)"
            )


TASK = Task(
    name="pydocs",
    title="Documentation of scientific Python packages",
    summary="Long documents made from installed docstrings, labelled by topic; names of packages, "
    "modules and topics are masked. Needs no download; the documents follow the installed versions.",
    metric="f1_macro",
    sizes="by the installed versions",
    source="the packages that foretoken depends on",
    licence="the documentation's own: BSD-3-Clause and Apache-2.0",
    reader=read,
    labels=LABELS,
    needs_raw=False,
    fold_group=lambda document: document.id.rpartition("#")[0],  # the source file
)
