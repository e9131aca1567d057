"""The task made of installed documentation: long pages in eight topics, without what would give them away."""

from collections import Counter

import pytest

from foretoken.data.tasks import pydocs
from foretoken.errors import MissingDataError

NAMES = {"numpy", "scipy", "sklearn", "torch", "pandas", "statistics", "transformers", "optimisation"}


@pytest.mark.slow
def test_the_documents():
    splits = pydocs.documents()
    counts = {split: Counter(document.label for document in found) for split, found in splits.items()}
    assert all(set(found) == set(pydocs.SOURCES) for found in counts.values())
    assert min(counts["train"].values()) >= 40
    assert min(*counts["validation"].values(), *counts["test"].values()) >= 8
    found = [document for documents in splits.values() for document in documents]
    words = sorted(len(document.text.split()) for document in found)
    assert words[0] >= pydocs.SHORTEST
    assert words[len(words) // 2] >= 500
    assert words[-len(words) // 10] >= 900
    homes, seen = {}, {}
    for split, documents in splits.items():
        for document in documents:
            assert homes.setdefault(document.where, split) == split  # a file is in one split
            letters = "".join(letter if letter.isalnum() else " " for letter in document.text.lower())
            assert not set(letters.split()) & NAMES, document.id
            for line in document.text.split("\n"):
                if len(line.split()) >= 25:
                    assert seen.setdefault(line, split) == split


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("a scipy.sparse.linalg.LinearOperator here", "a [name].LinearOperator here"),
        ("scikit-learn's estimators and PyTorch tensors", "[name]'s estimators and [name] tensors"),
        ("Optimizers for neural networks", "[name] for [name]"),
        ("torch_function and mytorch", "[name]_function and mytorch"),
        ("tablet", "tablet"),
    ],
)
def test_mask(text, masked):
    assert pydocs.mask(text) == masked


def test_a_topic_without_packages_is_named(monkeypatch):
    monkeypatch.setattr(pydocs, "SOURCES", {"one": ("no_such_package/*.py",)})
    with pytest.raises(MissingDataError, match="too few documents of 'one'; install datasets, numpy"):
        pydocs.documents.__wrapped__()
