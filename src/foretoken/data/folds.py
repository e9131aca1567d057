"""Folds: every labelled document is tested once, by a model that was trained on none of its group or its text.

The documents are put into the order of a hash of seed and text before scikit-learn divides them, so the folds depend
on the documents and the seed alone, as the other splits do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from foretoken.data.documents import Corpus, Splits, with_unique_ids
from foretoken.data.label_sets import LabelSets, have_label_sets, label_sets, stratified
from foretoken.data.options import DataOptions
from foretoken.data.splits import digest, refuse_small_classes, split_off, together
from foretoken.errors import ConfigError

GroupOf = Callable[[Any], str | None]


def pooled(corpus: Corpus, group_of: GroupOf) -> tuple[Corpus, list[str]]:
    """Return the corpus with the documents of all splits in train, and for each a key of those it must stay with.

    Where the rows of a group are scored together, groups of two splits are two groups, whatever they are called.
    """
    groups = [
        _named(group_of(example), split if corpus.grouped else None)
        for split, examples in corpus.splits.items()
        for example in examples
    ]
    examples = [
        replace(example, group=_named(example.group, split)) if corpus.grouped else example
        for split, found in with_unique_ids(corpus.splits).items()
        for example in found
    ]
    return replace(corpus, splits={"train": examples}), together([example.content for example in examples], groups)


def fold_splits(examples: Sequence[Any], keys: Sequence[str], options: DataOptions) -> Splits:
    """Return the documents of a fold as test, of the others a stratified share as validation, and the rest as train.

    Raises:
        ConfigError: no fold is named, or a class has too few documents.
        DataError: a class has too few documents for train and validation beside the test.
    """
    assert options.folds is not None
    if options.fold is None:
        raise ConfigError(
            f"data.folds is {options.folds}, but data.fold does not say which fold is the test: set it to 0 to "
            f"{options.folds - 1}; `foretoken train` and `foretoken sweep` run all folds without it"
        )
    if have_label_sets(examples):
        folds = assigned_by_labels(label_sets(keys, examples), keys, options.folds, options.fold_seed)
    else:
        folds = assigned([example.stratum for example in examples], keys, options.folds, options.fold_seed)
    test = [example for example, fold in zip(examples, folds, strict=True) if fold == options.fold]
    others = [(example, key) for example, key, fold in zip(examples, keys, folds, strict=True) if fold != options.fold]
    train, parts = split_off(
        [example for example, _ in others],
        {"validation": options.validation_fraction},
        options.fold_seed,
        [key for _, key in others],  # so that validation is parted from train as the folds are from each other
        are_mixed=options.group_column is not None,
    )
    return {"train": train, **parts, "test": test}


def assigned(strata: Sequence[str], keys: Sequence[str], folds: int, seed: int) -> list[int]:
    """Return the fold of every document: classes in proportion, documents with the same key in one fold.

    Raises:
        ConfigError: a class has fewer keys than there are folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    _refuse_small_class(strata, keys, folds)
    order = sorted(range(len(keys)), key=lambda index: digest("fold", seed, keys[index]))
    place = {key: number for number, key in enumerate(dict.fromkeys(keys[index] for index in order))}
    classes = [strata[index] for index in order]
    if len(place) == len(keys):
        parts = StratifiedKFold(folds).split(order, classes)
    else:
        parts = StratifiedGroupKFold(folds).split(order, classes, [place[keys[index]] for index in order])
    found = [0] * len(keys)
    for fold, (_, rows) in enumerate(parts):
        for row in rows:
            found[order[row]] = fold
    return found


def assigned_by_labels(sets: LabelSets, keys: Sequence[str], folds: int, seed: int) -> list[int]:
    """Return the fold of every document: every label in proportion, documents with the same key in one fold.

    Raises:
        DataError: there are fewer keys than folds.
    """
    refuse_small_classes({"": len(sets)}, folds, f"data.folds: {folds} needs {folds}")
    order = sorted(sets, key=lambda key: digest("fold", seed, key))
    place = stratified(sets, [1 / folds] * folds, order, seed)
    return [place[key] for key in keys]


def held_out_folds(rows: Sequence[Sequence[object]], keys: Sequence[str], most: int, seed: int) -> list[int]:
    """Return the fold, of so many at most, of every document with these classes; none of fewer than two keys.

    >>> held_out_folds([[0], [0], [1], [1]], ["a", "b", "c", "a"], 2, 0)
    [0, 1, 1, 0]
    """
    sets: dict[str, frozenset[str]] = {}
    for key, own in zip(keys, rows, strict=True):
        sets[key] = sets.get(key, frozenset()) | frozenset(map(str, own))
    return assigned_by_labels(sets, keys, min(most, len(sets)), seed) if len(sets) > 1 else []


def _refuse_small_class(strata: Sequence[str], keys: Sequence[str], folds: int) -> None:
    different: dict[str, set[str]] = defaultdict(set)
    for stratum, key in zip(strata, keys, strict=True):
        different[stratum].add(key)
    sizes = {stratum: len(keys) for stratum, keys in different.items()}
    refuse_small_classes(
        sizes,
        folds,
        f"data.folds: {folds} needs {folds} of each; at most {min(sizes.values())} can be asked for",
    )


def _named(group: str | None, split: str | None) -> str | None:
    return group if group is None or split is None else f"{split}/{group}"
