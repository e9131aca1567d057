"""Sentences of files, their examples with tags in IOB2, and whole documents of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from foretoken.data.examples import OUTSIDE, TaggedExample
from foretoken.data.readers.notes import note
from foretoken.data.readers.rows import ColumnNames, read_each
from foretoken.data.readers.tagging.schemes import (
    AUTO,
    BIO,
    BIO1,
    ENTITIES,
    POS,
    check_tag,
    needless_b,
    scheme_of,
    starts_without_b,
    to_iob2,
)
from foretoken.errors import DataError


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence with their tags as written.

    Attributes:
        words: at least one word.
        tags: one per word; empty if they are to be predicted.
        places: place of each word.
        row_id: its id, if it has one.
        document: its document, if that is known.
        text: the text that the words were made from, if there is one.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    places: tuple[str, ...]
    row_id: str | None = None
    document: str | None = None
    text: str | None = None


V = TypeVar("V")
Placed = tuple[str, Sentence | DataError]  # place of a sentence, and the sentence or its error


def placed(where: str, values: V | DataError, make: Callable[[str, V], Sentence]) -> Placed:
    """Return the place of a sentence, and the sentence made of its values or the error."""
    try:
        if isinstance(values, DataError):
            raise values
        return where, make(where, values)
    except DataError as error:
        error.row_id = values.get("id") if isinstance(values, Mapping) else error.row_id
        return where, error


def tags_of(sentences: Sequence[Placed]) -> list[tuple[str, ...]]:
    """Return the tags of the usable sentences."""
    return [sentence.tags for _, sentence in sentences if isinstance(sentence, Sentence)]


def tagged_examples(source: str, sentences: Sequence[Placed], columns: ColumnNames) -> list[TaggedExample]:
    """Return the sentences of a source with their tags in IOB2, or unchanged if they mark no entities.

    Unusable sentences and those with an unknown tag go to ``columns.bad_rows``. A mixture of IOB1 and IOB2 is accepted
    if the scheme is given, or the columns are those of training.

    Raises:
        DataError: there are no sentences, the tags are of different schemes, or bad sentences are errors.
    """
    is_labelled = columns.label is not None
    scheme = scheme_of(source, tags_of(sentences), columns.scheme) if is_labelled else POS
    usable: list[Sentence] = []

    def make(where: str, sentence: Sentence, number: int) -> TaggedExample:
        for place, tag in zip(sentence.places, sentence.tags, strict=False):  # there may be no tags
            check_tag(place, tag, scheme)
        usable.append(sentence)
        tags = sentence.tags if scheme == POS else tuple(to_iob2(sentence.tags, scheme))
        return TaggedExample(
            id=str(number) if sentence.row_id is None else sentence.row_id,
            words=sentence.words,
            tags=tags if is_labelled else (OUTSIDE,) * len(sentence.words),
            where=where,
            group=sentence.document if is_labelled else None,
            raw_text=sentence.text,
        )

    none = "has no sentences; expected words, each with its tag" if is_labelled else "no words; expected at least one"
    examples = read_each(sentences, make, columns, f"{source}: {none}")
    if columns.is_exact and columns.scheme in (AUTO, ENTITIES) and scheme in (BIO, BIO1):
        _refuse_mixture(usable)
    if is_labelled and not any(sentence.text for sentence in usable):
        note(source, f"the scheme of the tags is {scheme}; data.tag_scheme can name another", kind=f"tags {scheme}")
    return examples


def _refuse_mixture(sentences: Sequence[Sentence]) -> None:
    """Refuse a mixture of IOB1 and IOB2."""
    without_b, needless = (_first(sentences, test) for test in (starts_without_b, needless_b))
    if without_b and needless:
        raise DataError(
            f"{without_b[0]}: tag {without_b[1]!r} begins an entity, which is IOB1, but {needless[0]} begins one with "
            f"{needless[1]!r}, which is IOB2; correct the tags, or set data.tag_scheme: bio, which takes both"
        )


def _first(sentences: Sequence[Sentence], test: Callable[[str, str], bool]) -> tuple[str, str] | None:
    """Return place and tag of the first tag for which ``test(tag before, tag)`` holds."""
    for sentence in sentences:
        for place, before, tag in zip(sentence.places, (OUTSIDE, *sentence.tags), sentence.tags, strict=False):
            if test(before, tag):
                return place, tag
    return None


def join(sentences: Iterable[TaggedExample]) -> list[TaggedExample]:
    """Return one example per document, with the consecutive sentences of a ``group`` joined.

    Sentences without a group are not joined. No entity crosses a sentence, so no tag changes.
    """
    joined: list[TaggedExample] = []
    for (group, _), items in groupby(sentences, key=lambda sentence: (sentence.group, sentence.part)):
        members = list(items)
        joined.extend(members if group is None else [_joined(members)])
    return joined


def _joined(members: Sequence[TaggedExample]) -> TaggedExample:
    first = members[0]
    words = tuple(word for member in members for word in member.words)
    tags = tuple(tag for member in members for tag in member.tags)
    return TaggedExample(first.id, words, tags, first.where, first.group, first.part)
