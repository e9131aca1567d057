"""Splits of documents with several labels each: every label in proportion, by iterative stratification.

Sechidis et al. 2011, in the library iterative-stratification. As in :mod:`foretoken.data.splits`, the documents are
sorted by a hash first, so a split depends on the documents and the seed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretoken.data.documents import Example

LabelSets = Mapping[str, frozenset[str]]  # by document, or by group of documents


def have_label_sets(examples: Sequence[Any]) -> bool:
    """Tell whether examples may have several labels each."""
    return bool(examples) and getattr(examples[0], "labels", None) is not None


def label_sets(keys: Sequence[str], examples: Sequence[Example]) -> dict[str, frozenset[str]]:
    """Return all labels of every group of examples, by the group's key.

    >>> from foretoken.data.documents import Document
    >>> documents = [Document("1", "a", None, "", labels=("x",)), Document("2", "b", None, "", labels=("y",))]
    >>> sorted(label_sets(["g", "g"], documents)["g"])
    ['x', 'y']
    """
    sets: dict[str, frozenset[str]] = {}
    for key, example in zip(keys, examples, strict=True):
        sets[key] = sets.get(key, frozenset()) | frozenset(example.classes)
    return sets


def label_counts(sets: LabelSets) -> Mapping[str, int]:
    """Return how many groups have each label."""
    return Counter(label for labels in sets.values() for label in labels)


def stratified(sets: LabelSets, shares: Sequence[float], order: Sequence[str], seed: int) -> dict[str, int]:
    """Return the number of the part of each key; the parts have these shares of all keys and of each label.

    >>> sets = {str(number): frozenset("x" if number % 2 else "xy") for number in range(8)}
    >>> parts = stratified(sets, [0.5, 0.5], list(sets), seed=0)
    >>> sum(parts[key] for key in sets), sum(parts[key] for key, labels in sets.items() if "y" in labels)
    (4, 2)
    """
    import numpy as np
    from iterstrat.ml_stratifiers import IterativeStratification
    from sklearn.preprocessing import MultiLabelBinarizer

    if not order:
        return {}
    held = MultiLabelBinarizer().fit_transform([sets[key] for key in order]).astype(bool)
    parts = IterativeStratification(held, np.asarray(shares), np.random.RandomState(seed))
    return dict(zip(order, parts.tolist(), strict=True))


def parted(sets: LabelSets, fractions: Mapping[str, float], order: Sequence[str], seed: int) -> dict[str, str]:
    """Return the named part of each key that is in one; the others remain for training.

    Groups with a label that is too rare for all parts and training remain for training.
    """
    counts, needed = label_counts(sets), len(fractions) + 1
    free = [key for key in order if all(counts[label] >= needed for label in sets[key])]
    shares = [fraction * len(order) / max(len(free), 1) for fraction in fractions.values()]
    total = max(1.0, sum(shares))
    shares = [max(0.0, 1 - sum(shares)), *(share / total for share in shares)]
    names = ["", *fractions]
    return {key: names[number] for key, number in stratified(sets, shares, free, seed).items() if number}
