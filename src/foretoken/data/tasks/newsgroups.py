"""20 Newsgroups, the official "bydate" version, from its raw archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from foretoken.data.documents import Document, Splits, without_empty
from foretoken.data.options import CLEAN, REMOVABLE, DataOptions
from foretoken.data.readers.archives import raw_files
from foretoken.data.readers.labels import documents_from_rows
from foretoken.data.readers.rows import ColumnNames, UsableRow
from foretoken.data.splits import split_off
from foretoken.errors import ConfigError, DataError, MissingDataError

SIXTY = "60-20-20"  # the shares of all posts in table 6 of Li et al. 2023
HALVED = "bydate-halved"  # the test half divided into validation and test, which gives the same shares
_HALVES = {"20news-bydate-train": "train", "20news-bydate-test": "test"}
_HUB_COLUMNS = ColumnNames("text", "label_text")


def read(path: Path, options: DataOptions) -> Splits:
    """Return the posts in their official train and test halves, or according to ``options.split``.

    ``path`` is the archive (20news-bydate.tar.gz, .tar.xz), or a folder with it or its content. Posts are latin-1,
    and stripped according to ``options.remove``. Posts that are empty then are left out and counted in the log.

    Raises:
        MissingDataError: there are no posts.
        DataError: the archive is damaged.
    """
    splits: dict[str, list[Document]] = {"train": [], "test": []}
    for name, where, content in raw_files(path, "20news-bydate*.tar*", _is_post):
        half, group, number = name.parts[-3:]
        text = strip(content.decode("latin-1"), options.remove)
        splits[_HALVES[half]].append(Document(f"{group}/{number}", text, group, where))
    for half, split in _HALVES.items():
        if not splits[split]:
            raise MissingDataError(
                f"{path}: no posts at {half}/<group>/<number>, and no archive 20news-bydate.tar.gz with them"
            )
    kept = {split: without_empty(documents, f"{split} posts") for split, documents in splits.items()}
    return _arranged(kept, options)


def _arranged(splits: Splits, options: DataOptions) -> Splits:
    """Return the halves by date; with another ``options.split`` all posts in 60/20/20, or the test half divided."""
    if options.split == SIXTY:
        everything = [*splits["train"], *splits["test"]]
        rest, parts = split_off(everything, {"validation": 0.2, "test": 0.2}, options.split_seed)
        return {"train": rest, **parts}
    if options.split == HALVED:
        test, parts = split_off(splits["test"], {"validation": 0.5}, options.split_seed)
        return {"train": splits["train"], **parts, "test": test}
    return splits


def strip(text: str, remove: Sequence[str]) -> str:
    r"""Return a post without headers, signature and quotes, by scikit-learn's rules and in its order.

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
    for name, stripper in strippers.items():
        if name in remove:
            text = stripper(text)
    return text


def from_rows(source: str, rows: Iterable[UsableRow]) -> list[Document]:
    """Return the posts, which are already stripped, without empty ones."""
    kept = ((where, values) for where, values in rows if (values["text"] or "").strip())
    return documents_from_rows(source, kept, _HUB_COLUMNS)


def check_hub(options: DataOptions) -> None:
    """Refuse options that the copy on the hub does not support."""
    if options.split != CLEAN:
        raise ConfigError(f"split={options.split!r} needs the raw archive: set path to its folder")
    if set(options.remove) != set(REMOVABLE):
        raise ConfigError(
            f"the hub copy of 20newsgroups comes without headers, footers and quotes, got remove={options.remove!r}; "
            "keep the default or set path to the raw archive"
        )


def _is_post(name: PurePosixPath) -> bool:
    return len(name.parts) >= 3 and name.parts[-3] in _HALVES
