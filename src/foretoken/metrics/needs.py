"""What a metric must find among the labels: without it the value is the same, or none, whatever is predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

LONGEST_FOR_TER = 100  # words of a reference on average; the edits of longer texts take minutes to find


class Need(NamedTuple):
    """What must be there, in words, and whether labels have it."""

    what: str
    is_met: Callable[[Sequence[Any]], bool]


def _words(rows: Sequence[Sequence[str]]) -> float:
    return sum(len(text.split()) for texts in rows for text in texts) / sum(map(len, rows))


TWO_CLASSES = Need("documents of two classes or more", lambda classes: len(set(classes)) > 1)
POSITIVES = Need("documents of class {positive!r}", lambda classes: 1 in set(classes))
TWO_NUMBERS = Need("two different numbers or more", lambda numbers: bool(np.ptp(numbers, axis=0).all()))
ENTITIES = Need("an entity", lambda rows: any(tag != "O" for tags in rows for tag in tags))
SHORT_TEXTS = Need(f"references of at most {LONGEST_FOR_TER} words", lambda rows: _words(rows) <= LONGEST_FOR_TER)
BOTH_KINDS = Need(
    "questions with and without an answer", lambda truths: len({bool(truth.answers) for truth in truths}) > 1
)
