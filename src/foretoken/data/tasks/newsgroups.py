"""20 Newsgroups, the official "bydate" version, from its raw archive."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from foretoken.data.documents import Document, Splits, is_empty
from foretoken.data.options import CLEAN, REMOVABLE, DataOptions
from foretoken.data.readers.archives import tar_files
from foretoken.data.readers.files import entries, is_folder, read_bytes
from foretoken.data.readers.rows import ColumnNames, Row, documents_from_rows
from foretoken.data.splits import split_off
from foretoken.data.tasks.base import Task, from_hub
from foretoken.errors import ConfigError, DataError, MissingDataError

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
SIXTY = "60-20-20"  # of all posts, as table 6 of Li et al. 2023 gives the shares
HALVED = "bydate-halved"  # the test half halved into validation and test, which makes the same shares
_HALVES = {"20news-bydate-train": "train", "20news-bydate-test": "test"}
_HUB_COLUMNS = ColumnNames("text", "label_text")
_log = logging.getLogger(__name__)
_Post = tuple[PurePosixPath, bytes]


def read(path: Path, options: DataOptions) -> Splits:
    """Return the posts in their official train and test halves (or as ``options.split`` says).

    They are stripped as ``options.remove`` says.

    ``path`` is the archive (20news-bydate.tar.gz, .tar.xz), or a folder with it or its content. Posts are
    latin-1. Those with nothing left after the stripping are dropped and counted in the log.

    Raises:
        DataError: no archive, a damaged one, or one of another shape.
    """
    splits: dict[str, list[Document]] = {"train": [], "test": []}
    for name, content in _posts(path):
        if len(name.parts) >= 3 and name.parts[-3] in _HALVES:
            text = strip(content.decode("latin-1"), options.remove)
            document = Document("/".join(name.parts[-2:]), text, name.parts[-2], f"{path}:{name}")
            splits[_HALVES[name.parts[-3]]].append(document)
    for half, split in _HALVES.items():
        if not splits[split]:
            raise MissingDataError(
                f"{path}: no posts at {half}/<group>/<number>; expected the archive 20news-bydate.tar.gz"
            )
    return _arranged({split: _drop_empty(split, documents) for split, documents in splits.items()}, options)


def _arranged(splits: Splits, options: DataOptions) -> Splits:
    """Return the halves by date, or with another ``options.split`` all posts in 60/20/20, or the test half halved."""
    if options.split == SIXTY:
        everything = [*splits["train"], *splits["test"]]
        rest, parts = split_off(everything, {"validation": 0.2, "test": 0.2}, options.split_seed)
        return {"train": rest, **parts}
    if options.split == HALVED:
        test, parts = split_off(splits["test"], {"validation": 0.5}, options.split_seed)
        return {"train": splits["train"], **parts, "test": test}
    return splits


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


def _from_hub(source: str, rows: Iterable[Row]) -> list[Document]:
    """Return the posts, which are already stripped, where anything was left."""
    kept = ((where, values) for where, values in rows if (values["text"] or "").strip())
    return documents_from_rows(source, kept, _HUB_COLUMNS)


def _check_hub(options: DataOptions) -> None:
    if options.split != CLEAN:
        raise ConfigError(f"split={options.split!r} needs the raw archive: set path to its folder")
    if set(options.remove) != set(REMOVABLE):
        raise ConfigError(
            f"the hub copy of 20newsgroups comes without headers, footers and quotes, got remove={options.remove!r}; "
            "keep the default or set path to the raw archive"
        )


def _drop_empty(split: str, documents: list[Document]) -> list[Document]:
    kept = [document for document in documents if not is_empty(document)]
    if len(kept) < len(documents):
        _log.info("20newsgroups: dropped %d empty of %d %s posts", len(documents) - len(kept), len(documents), split)
    return kept


def _posts(path: Path) -> list[_Post]:
    if not is_folder(path):
        return tar_files(path, _is_any)
    for root in (path, path / "20news-bydate"):
        if any(is_folder(root / half) for half in _HALVES):
            return _extracted(root)
    archives = sorted(path.glob("20news-bydate*.tar*"))
    if not archives:
        raise MissingDataError(
            f"{path}: neither 20news-bydate.tar.gz (or .tar.xz) nor its folders are here; see `foretoken tasks`"
        )
    return tar_files(archives[0], _is_any)


def _extracted(root: Path) -> list[_Post]:
    groups = [group for half in sorted(_HALVES) for group in entries(root / half) if is_folder(group)]
    files = [file for group in groups for file in entries(group) if not is_folder(file)]
    return [(PurePosixPath(file.relative_to(root).as_posix()), read_bytes(file, may_be_empty=True)) for file in files]


def _is_any(_: PurePosixPath) -> bool:
    return True


TASK = Task(
    name="20newsgroups",
    title="20 Newsgroups",
    summary="Usenet posts of 1993 in twenty groups; the official split by date, without headers, signatures and "
    "quotes.",
    metric="accuracy",
    sizes="9,912 / 1,102 / 7,317",
    source="20news-bydate.tar.gz, http://qwone.com/~jason/20Newsgroups/",
    licence="no formal licence; distributed for research",
    reader=read,
    hub=from_hub("SetFit/20_newsgroups", _HUB_COLUMNS.needed, _from_hub, check=_check_hub),
    labels=LABELS,
    splits=(CLEAN, SIXTY, HALVED),
    options=("remove",),
)
