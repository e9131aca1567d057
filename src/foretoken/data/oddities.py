"""Warnings about data that are legal but probably not intended; nothing is changed."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from foretoken.data.documents import Corpus, Example, appearance, shown
from foretoken.data.problems import PROBLEMS, Answer
from foretoken.data.splits import text_key

_log = logging.getLogger(__name__)
_PAIRS = (("train", "validation"), ("train", "test"), ("validation", "test"))
_ANSWERS = {Answer.CLASS: "label", Answer.LABELS: "labels", Answer.CHOICE: "answer", Answer.TAGS: "tags"}


def warn_of_classes(corpus: Corpus, names: Sequence[str]) -> None:
    """Log a warning if classes look the same to a reader."""
    if not PROBLEMS[corpus.problem].has_classes:
        return
    alike = list(_alike(names))
    if alike:
        sizes = Counter(name for documents in corpus.splits.values() for item in documents for name in item.classes)
        first = shown([f"{name!r} ({sizes[name]} documents)" for name in alike[0]])
        _log.warning(
            "%d of %d classes look like another one and are kept apart: %s; write them alike if they are one",
            *(sum(map(len, alike)), len(names), first),
        )


def input_keys(splits: Mapping[str, Sequence[Example]]) -> dict[str, list[str]]:
    """Return a key for every example, which examples share whose inputs differ only in white space."""
    return {split: [text_key(example.content) for example in examples] for split, examples in splits.items()}


def warn_of_leaks(splits: Mapping[str, Sequence[Example]], keys: Mapping[str, Sequence[str]]) -> None:
    """Log a warning if validation or test repeat inputs of train, or test those of validation."""
    for first, second in _PAIRS:
        known = set(keys[first])
        shared = [example.id for example, key in zip(splits[second], keys[second], strict=True) if key in known]
        if shared:
            _log.warning(
                "%d of %d %s documents (%.0f %%) are in %s too, and scores on them are too good: %s",
                *(len(shared), len(keys[second]), second, 100 * len(shared) / len(keys[second]), first, shown(shared)),
            )


def warn_of_shared_groups(splits: Mapping[str, Sequence[Example]]) -> None:
    """Log a warning if validation or test have groups of train, or test those of validation."""
    groups = {split: {example.group for example in examples} - {None} for split, examples in splits.items()}
    for first, second in _PAIRS:
        shared = sorted(map(str, groups[first] & groups[second]))
        if shared:
            _log.warning(
                "%d of %d groups of %s are in %s too, and scores on their documents are too good: %s",
                *(len(shared), len(groups[second]), second, first, shown(shared)),
            )


def warn_of_contradictions(
    problem: str, splits: Mapping[str, Sequence[Example]], keys: Mapping[str, Sequence[str]]
) -> None:
    """Log a warning if equal inputs have different answers, and the number of repeated inputs in train."""
    repeated = len(keys["train"]) - len(set(keys["train"]))
    if repeated:
        _log.info("%d of %d training documents repeat the text of another", repeated, len(keys["train"]))
    attribute = _ANSWERS.get(PROBLEMS[problem].answer)
    if attribute is None:
        return
    first: dict[str, Example] = {}
    contradicted: dict[str, tuple[Example, Example]] = {}
    for split, examples in splits.items():
        for example, key in zip(examples, keys[split], strict=True):
            other = first.setdefault(key, example)
            answers = (getattr(item, attribute) for item in (other, example))
            if len({frozenset(answer) if attribute == "labels" else answer for answer in answers}) > 1:
                contradicted.setdefault(key, (other, example))
    if contradicted:
        _log.warning(
            "texts with contradicting labels, about which no model can be right: %d, the first at %s",
            *(len(contradicted), shown([example.where for example in next(iter(contradicted.values()))])),
        )


def warn_of_absent_classes(splits: Mapping[str, Sequence[Example]]) -> None:
    """Log a warning if validation or test lack classes of train."""
    classes = _classes(splits["train"])
    for name in ("validation", "test"):
        absent = sorted(classes - _classes(splits[name]))
        if absent:
            counts = len(absent), len(classes), shown(absent)
            _log.warning("%s has no documents of %d of the %d classes of train: %s", name, *counts)


def _classes(examples: Sequence[Example]) -> set[str]:
    return {name for example in examples for name in example.classes}


def _alike(names: Sequence[str]) -> Iterator[list[str]]:
    groups: dict[object, list[str]] = defaultdict(list)
    for name in names:
        groups[appearance(name)].append(name)
    return (group for group in groups.values() if len(group) > 1)
