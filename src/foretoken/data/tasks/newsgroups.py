"""20 Newsgroups, the official "bydate" version, from its raw archive."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from foretoken.data.documents import Corpus, Document, is_empty
from foretoken.errors import ConfigError, DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions
    from foretoken.data.readers.rows import Row

LABELS = (
    "alt.atheism",
    "comp.graphics",
    "comp.os.ms-windows.misc",
    "comp.sys.ibm.pc.hardware",
    "comp.sys.mac.hardware",
    "comp.windows.x",
    "misc.forsale",
    "rec.autos",
    "rec.motorcycles",
    "rec.sport.baseball",
    "rec.sport.hockey",
    "sci.crypt",
    "sci.electronics",
    "sci.med",
    "sci.space",
    "soc.religion.christian",
    "talk.politics.guns",
    "talk.politics.mideast",
    "talk.politics.misc",
    "talk.religion.misc",
)
_HALVES = {"20news-bydate-train": "train", "20news-bydate-test": "test"}
_log = logging.getLogger(__name__)
_Post = tuple[PurePosixPath, bytes]


def read(path: Path | None, options: DataOptions) -> Corpus:
    """Return the posts in their official train and test halves, stripped as ``options.remove`` says.

    ``path`` is the archive (20news-bydate.tar.gz, .tar.xz), or a folder with it or its content. Posts are
    latin-1. Those with nothing left after the stripping are dropped and counted in the log.

    Raises:
        DataError: no archive, a damaged one, or one of another shape.
    """
    assert path is not None
    splits: dict[str, list[Document]] = {"train": [], "test": []}
    for name, content in _posts(path):
        if len(name.parts) >= 3 and name.parts[-3] in _HALVES:
            text = strip(content.decode("latin-1"), options.remove)
            document = Document("/".join(name.parts[-2:]), text, name.parts[-2], f"{path}:{name}")
            splits[_HALVES[name.parts[-3]]].append(document)
    for half, split in _HALVES.items():
        if not splits[split]:
            raise DataError(f"{path}: no posts at {half}/<group>/<number>; expected the archive 20news-bydate.tar.gz")
    return Corpus({split: _drop_empty(split, documents) for split, documents in splits.items()})


def strip(text: str, remove: Sequence[str]) -> str:
    r"""Return a post without headers, signature and quotes, by scikit-learn's own rules and in its order.

    >>> strip("From: a\n\nText.\n> quoted", ["headers", "quotes"])
    'Text.'
    """
    try:
        from sklearn.datasets import _twenty_newsgroups as rules

        strippers = {
            "headers": rules.strip_newsgroup_header,
            "footers": rules.strip_newsgroup_footer,
            "quotes": rules.strip_newsgroup_quoting,
        }
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"this scikit-learn lacks its 20 Newsgroups functions ({error}); set remove=[] or install scikit-learn<1.10"
        ) from error
    for part, stripper in strippers.items():
        if part in remove:
            text = stripper(text)
    return text


def from_hub_row(row: Row) -> Row | None:
    """Return a row of SetFit/20_newsgroups, whose texts are already stripped; None when nothing was left."""
    return row if (row[1]["text"] or "").strip() else None


def check_hub(options: DataOptions) -> None:
    """Raise a ConfigError when the hub copy, which is already stripped, cannot serve ``options.remove``."""
    if set(options.remove) != {"headers", "footers", "quotes"}:
        raise ConfigError(
            f"the hub copy of 20newsgroups comes without headers, footers and quotes, got "
            f"remove={options.remove!r}; "
            "keep the default or set path to the raw archive"
        )


def _drop_empty(split: str, documents: list[Document]) -> list[Document]:
    kept = [document for document in documents if not is_empty(document)]
    if len(kept) < len(documents):
        _log.info("20newsgroups: dropped %d empty of %d %s posts", len(documents) - len(kept), len(documents), split)
    return kept


def _posts(path: Path) -> Iterator[_Post]:
    if path.is_file():
        return _archived(path)
    for root in (path, path / "20news-bydate"):
        if any((root / half).is_dir() for half in _HALVES):
            return _extracted(root)
    archives = sorted(path.glob("20news-bydate*.tar*"))
    if not archives:
        raise DataError(
            f"{path}: neither 20news-bydate.tar.gz (or .tar.xz) nor its folders are here; see `foretoken tasks`"
        )
    return _archived(archives[0])


def _extracted(root: Path) -> Iterator[_Post]:
    for half in sorted(_HALVES):
        for file in sorted((root / half).glob("*/*")):
            if file.is_file():
                yield PurePosixPath(file.relative_to(root).as_posix()), file.read_bytes()


def _archived(archive: Path) -> Iterator[_Post]:
    """Yield the members in the order of their names; nothing is written to disk."""
    import lzma
    import tarfile
    import zlib

    try:
        with tarfile.open(archive, mode="r:*") as tar:
            posts = [(member.name, tar.extractfile(member)) for member in tar if member.isfile()]
            contents = [(PurePosixPath(name), file.read()) for name, file in posts if file is not None]
    except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise DataError(f"{archive}: the archive is damaged or no tar archive ({error}); fetch it again") from error
    yield from sorted(contents)
