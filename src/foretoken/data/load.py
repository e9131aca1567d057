"""From options to tables: train, validation and test with the columns id, text and label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.data.documents import SPLITS, Corpus, Document, sort_labels, with_unique_ids
from foretoken.data.folders import is_saved_dataset, read_folder, read_label_folders, read_texts_folder
from foretoken.data.hub import hub_name, read_hub
from foretoken.data.readers import read_file
from foretoken.data.splits import split_off, subsample, warn_of_leaks
from foretoken.data.tasks import find_raw, get_task
from foretoken.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import datasets

    from foretoken.data.options import DataOptions


def load(options: DataOptions) -> datasets.DatasetDict:
    """Return train, validation and test, each with the columns ``id``, ``text`` and ``label`` (a ClassLabel).

    A split that the source lacks is taken from train: stratified, deterministic, identical texts together.

    Raises:
        DataError: the data are not usable; the message names file, line and column where there are any.
        ConfigError: an option does not fit the data.
    """
    import datasets

    corpus = _read(options)
    corpus = _keep_labels(corpus, options.labels)
    names = _label_names(corpus)
    splits = _subsampled(_complete(corpus.splits, options), options)
    _refuse_unknown_labels(splits, names)
    splits = with_unique_ids(splits)
    return datasets.DatasetDict({split: _table(splits[split], names) for split in SPLITS})


def load_texts(path: str | Path, text_column: str = "text") -> list[tuple[str, str]]:
    """Return (id, text) of all documents of a csv, tsv, jsonl, json, parquet or txt file, or a folder of txt.

    Raises:
        DataError: the file or folder is not usable, or a document is empty.
    """
    path = Path(path).expanduser()
    documents = read_texts_folder(path) if path.is_dir() else read_file(path, text_column, None)
    if any(not document.text.strip() for document in documents):
        raise DataError(f"{path}: the document is empty; expected some text")
    return [(document.id, document.text) for document in documents]


def load_labelled(path: str | Path, options: DataOptions, label_names: Sequence[str]) -> datasets.Dataset:
    """Return one file, or folder of label folders, with the class numbers of ``label_names``.

    Raises:
        DataError: the data are not usable, or a label is not among the names; the message names the line.
    """
    documents = _one_split(Path(path).expanduser(), options)
    for document in documents:
        if document.label not in label_names:
            raise DataError(
                f"{document.where}: label {document.label!r} is unknown"
                f"{did_you_mean(str(document.label), label_names)}; the labels are {', '.join(label_names)}"
            )
    return _table(documents, list(label_names))


def _read(options: DataOptions) -> Corpus:
    if options.task is not None:
        return _read_task(options)
    if options.train is not None:
        files = {split: getattr(options, split) for split in SPLITS}
        return Corpus({split: _one_split(Path(file).expanduser(), options) for split, file in files.items() if file})
    assert options.path is not None
    return _read_path(options.path, options)


def _read_task(options: DataOptions) -> Corpus:
    task = get_task(str(options.task))
    if options.path == "hub" and task.hub is not None:
        task.hub.check(options)
        columns = task.hub.text_column, task.hub.label_column
        corpus = read_hub(task.hub.name, task.hub.config, *columns, convert=task.hub.convert)
        return Corpus(corpus.splits, list(task.labels))
    return task.reader(find_raw(task.name, options.path) if task.needs_raw else None, options)


def _read_path(path: str, options: DataOptions) -> Corpus:
    local = Path(path).expanduser()
    if local.is_dir():
        return read_folder(local, options.text_column, options.label_column)
    if not local.exists():
        name = hub_name(path)
        if name is not None:
            return read_hub(name, options.config_name, options.text_column, options.label_column)
    return Corpus({"train": _one_split(local, options)})


def _one_split(path: Path, options: DataOptions) -> list[Document]:
    if not path.is_dir():
        return read_file(path, options.text_column, options.label_column)
    if not is_saved_dataset(path):
        return read_label_folders(path)
    splits = read_folder(path, options.text_column, options.label_column).splits
    if len(splits) != 1:
        raise DataError(f"{path}: holds the splits {', '.join(splits)}, expected one table; set path instead")
    return next(iter(splits.values()))


def _keep_labels(corpus: Corpus, labels: Sequence[str] | None) -> Corpus:
    if labels is None:
        return corpus
    present = sort_labels(str(document.label) for documents in corpus.splits.values() for document in documents)
    for label in labels:
        if label not in present:
            raise DataError(
                f"labels: no document has label {label!r}{did_you_mean(label, present)}; "
                f"the labels are {', '.join(present)}"
            )
    kept = {
        split: [document for document in documents if document.label in labels]
        for split, documents in corpus.splits.items()
    }
    names = [name for name in corpus.label_names if name in labels] if corpus.label_names else None
    return Corpus(kept, names)


def _label_names(corpus: Corpus) -> list[str]:
    """Return the classes of train, in order; a class without training documents has no name."""
    if "train" not in corpus.splits:
        raise DataError(f"the data have the splits {', '.join(corpus.splits)} but no train split; name one with train")
    present = {str(document.label) for document in corpus.splits["train"]}
    names = [name for name in corpus.label_names or sort_labels(present) if name in present]
    if len(names) < 2:
        raise DataError(
            f"train has {len(names)} class{'' if len(names) == 1 else 'es'} "
            f"({', '.join(names) or 'no documents'}); "
            "classification needs at least two: check label_column"
        )
    return names


def _complete(splits: dict[str, list[Document]], options: DataOptions) -> dict[str, list[Document]]:
    """Return all three splits, taking from train what the source lacks."""
    fractions = {"test": options.test_fraction, "validation": options.validation_fraction}
    missing = {split: fraction for split, fraction in fractions.items() if split not in splits}
    for split, documents in splits.items():
        if not documents:
            raise DataError(f"{split} has no documents of the classes in labels; name other classes")
    if not missing:
        complete = dict(splits)
    else:
        rest, parts = split_off(splits["train"], missing, options.split_seed)
        complete = {**splits, **parts, "train": rest}
    if options.split == "clean":  # the published hyperpartisan split has given its own warning
        warn_of_leaks(complete)
    return {split: complete[split] for split in SPLITS}


def _subsampled(splits: dict[str, list[Document]], options: DataOptions) -> dict[str, list[Document]]:
    return {
        split: subsample(documents, getattr(options, f"max_{split}"), options.split_seed, f"max_{split}")
        for split, documents in splits.items()
    }


def _refuse_unknown_labels(splits: dict[str, list[Document]], names: Sequence[str]) -> None:
    for split, documents in splits.items():
        unknown = sort_labels(str(document.label) for document in documents if document.label not in names)
        if unknown:
            first = next(document for document in documents if document.label == unknown[0])
            raise DataError(
                f"{first.where}: {split} has documents labelled {', '.join(map(repr, unknown))}, but train "
                "has none; "
                f"the labels of train are {', '.join(names)}"
            )


def _table(documents: Sequence[Document], names: list[str]) -> datasets.Dataset:
    import datasets

    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=names),
        }
    )
    number = {name: index for index, name in enumerate(names)}
    columns = {
        "id": [document.id for document in documents],
        "text": [document.text for document in documents],
        "label": [number[str(document.label)] for document in documents],
    }
    return datasets.Dataset.from_dict(columns, features=features)
