"""Made-up examples in the shape of a built-in task, in place of its raw data."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from foretoken.data.documents import (
    OUTSIDE,
    SPLITS,
    CandidateExample,
    ChoiceExample,
    Corpus,
    Document,
    GenerationExample,
    QuestionExample,
    TaggedExample,
)
from foretoken.data.problems import PROBLEMS, Answer, Rows
from foretoken.data.tasks.base import Task

_WORDS = ("tea", "cup", "pot", "milk", "leaf", "rain", "boat", "oar", "lake", "fish")
_WHERE = "made up"
_PAIRED = 2  # examples of a group


def made_up(task: Task, count: int) -> Corpus:
    """Return at least ``count`` examples per split with every class, the same on each call."""
    data = PROBLEMS[task.problem]
    classes = list(task.labels) if data.has_classes else None
    number, make = max(count, 2 * len(classes or ())), _MAKERS[data.rows, data.answer]
    splits = {
        split: [make(f"{split}-{index}", index, _words(split, index), task) for index in range(number)]
        for split in SPLITS
    }
    return Corpus(splits, classes, task.problem, task.grouped)


def _words(*seed: object) -> Iterator[str]:
    chance = random.Random("/".join(map(str, seed)))
    while True:
        yield " ".join(chance.choices(_WORDS, k=4))


def _labelled(name: str, index: int, words: Iterator[str], task: Task) -> Document:
    labels, group = task.labels or ("no", "yes"), f"{name.partition('-')[0]}-{index // _PAIRED}"
    label = labels[index % len(labels)]
    return Document(name, next(words), label, _WHERE, group=group if task.grouped else None)


def _with_labels(name: str, index: int, words: Iterator[str], task: Task) -> Document:
    names = task.labels or ("no", "yes")
    labels = [names[index % len(names)], *names[: index % 3]]
    return Document(name, next(words), None, _WHERE, labels=tuple(dict.fromkeys(labels)))


def _tagged(name: str, index: int, words: Iterator[str], task: Task) -> TaggedExample:
    begins = [label for label in task.labels if label.startswith("B-")] or ["B-PER"]
    sentence = tuple(next(words).split())
    tags = [OUTSIDE] * len(sentence)
    tags[index % len(sentence)] = begins[index % len(begins)]
    return TaggedExample(name, sentence, tuple(tags), _WHERE)


def _candidate(name: str, index: int, words: Iterator[str], _: Task) -> CandidateExample:
    candidates, supports = (_WORDS[index % 5], _WORDS[5], _WORDS[6]), (next(words), next(words))
    return CandidateExample(name, next(words), candidates, supports, index % len(candidates), _WHERE)


def _generated(name: str, _: int, words: Iterator[str], task: Task) -> GenerationExample:
    markers = task.markers.source if task.markers else ()
    source = " ".join(f"{marker} {next(words)}" for marker in markers) or next(words)
    return GenerationExample(name, source, (next(words),), _WHERE)


def _asked(name: str, index: int, words: Iterator[str], _: Task) -> QuestionExample:
    context = f"{next(words)} {next(words)}"
    spans = [match.span() for match in re.finditer(r"\w+", context)]
    return QuestionExample(name, next(words), context, (spans[index % len(spans)],), _WHERE)


_MAKERS: dict[tuple[Rows, Answer], Callable[[str, int, Iterator[str], Task], Any]] = {
    (Rows.TEXTS, Answer.CLASS): _labelled,
    (Rows.TEXTS, Answer.LABELS): _with_labels,
    (Rows.TEXTS, Answer.NUMBER): lambda name, i, words, _: Document(name, next(words), None, _WHERE, value=i % 5.0),
    (Rows.CHOICES, Answer.CHOICE): lambda name, index, words, _: ChoiceExample(
        name, next(words), (next(words), next(words)), index % 2, _WHERE
    ),
    (Rows.WORDS, Answer.TAGS): _tagged,
    (Rows.CANDIDATES, Answer.CHOICE): _candidate,
    (Rows.SOURCES, Answer.TEXT): _generated,
    (Rows.QUESTIONS, Answer.SPAN): _asked,
}
