"""What a metric must find among the labels: without it the value is the same, or none, whatever is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from foretoken.metrics.table import positive_of

LONGEST_FOR_TER = 100  # words of a reference on average; the edits of longer texts take minutes to find


class Need(NamedTuple):
    """What must be there, in words, and whether labels have it."""

    what: str
    is_met: Callable[[Sequence[Any]], bool]


def _words(rows: Sequence[Sequence[str]]) -> float:
    return sum(len(text.split()) for texts in rows for text in texts) / sum(map(len, rows))


_TWO_CLASSES = Need("documents of two classes or more", lambda classes: len(set(classes)) > 1)
_POSITIVES = Need("documents of class {positive!r}", lambda classes: 1 in set(classes))
_TWO_NUMBERS = Need("two different numbers or more", lambda numbers: bool(np.ptp(numbers, axis=0).all()))
_ENTITIES = Need("an entity", lambda rows: any(tag != "O" for tags in rows for tag in tags))
_SHORT_TEXTS = Need(f"references of at most {LONGEST_FOR_TER} words", lambda rows: _words(rows) <= LONGEST_FOR_TER)
_BOTH_KINDS = Need(
    "questions with and without an answer", lambda truths: len({bool(truth.answers) for truth in truths}) > 1
)

_NEEDS: Mapping[str, Mapping[str, Need]] = {
    "classification": dict.fromkeys(("matthews", "roc_auc"), _TWO_CLASSES)
    | dict.fromkeys(("precision", "recall", "f1"), _POSITIVES),
    "regression": dict.fromkeys(("pearson", "spearman", "pearson_spearman"), _TWO_NUMBERS),
    "token-classification": dict.fromkeys(("precision", "recall", "f1", "f1_macro"), _ENTITIES),
    "generation": {"ter": _SHORT_TEXTS},
    "question-answering": dict.fromkeys(
        ("has_answer_exact_match", "has_answer_token_f1", "no_answer_exact_match"), _BOTH_KINDS
    ),
}


def lacking(name: str, problem: str, labels: Sequence[Any], classes: Sequence[str] = ("0", "1")) -> str | None:
    """Return what a metric needs of labels, as the problem has them, and does not find; None where nothing is missing.

    ``classes`` are what the labels are called, where these are numbers of classes.

    >>> lacking("roc_auc", "classification", [1, 1]), lacking("accuracy", "classification", [1, 1])
    ('documents of two classes or more', None)
    >>> lacking("f1", "classification", [0, 0], ["benign", "cancer"])
    "documents of class 'cancer'"
    >>> lacking("pearson", "regression", [3.0])
    'two different numbers or more'
    """
    need = _NEEDS.get(problem, {}).get(name)
    if need is None or need.is_met(labels):
        return None
    return need.what.format(positive=positive_of(problem, classes))
