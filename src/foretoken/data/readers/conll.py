"""Files with one word and its tag per line (CoNLL), and the tag schemes IOB1 and IOB2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretoken.data.readers.files import read_text
from foretoken.data.tags import OUTSIDE
from foretoken.errors import ConfigError, DataError

SCHEMES = ("auto", "IOB1", "IOB2", "lenient")
_DOCSTART = "-DOCSTART-"
_DOC = "#doc"
_TAG = re.compile(r"O|[BI]-\S+")


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence with their tags as they are in the file; ``lines`` has the line of each word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...]
    document: str | None = None


def read_sentences(path: Path, *, word_column: int = 0, tag_column: int = -1) -> list[Sentence]:
    """Return the sentences of a file: one word per line, columns separated by tabs or blanks.

    A blank line, also one of blanks and tabs, ends a sentence. A line ``-DOCSTART-`` or ``#doc <id>`` begins a
    document.

    Raises:
        DataError: a line has too few columns, no word, or a tag that is none; the message names file and line.
    """
    sentences: list[Sentence] = []
    document, documents = None, 0
    words: list[tuple[int, str, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        fields = fields_of(line)
        begins = begins_document(fields)
        if words and (begins or not fields):
            sentences.append(_sentence(words, document))
            words = []
        if begins:
            documents += 1
            document = fields[1] if fields[0] == _DOC and len(fields) > 1 else str(documents)
        elif fields:
            words.append((number, *_word(f"{path}:{number}", fields, word_column, tag_column)))
    if words:
        sentences.append(_sentence(words, document))
    if not sentences:
        raise DataError(f"{path}: has no sentences; expected one word and its tag per line")
    return sentences


def to_iob2(tags: Iterable[str]) -> list[str]:
    """Return tags in IOB2, where ``B-`` begins every entity and nothing else.

    In IOB1 an entity begins with ``I-``, or with ``B-`` right after another of its type (Tjong Kim Sang and Veenstra
    1999). Tags in IOB2 stay as they are.

    >>> to_iob2(["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG"])
    ['B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC', 'B-ORG']
    """
    found: list[str] = []
    before = OUTSIDE
    for tag in tags:
        found.append(f"B-{tag[2:]}" if _starts_without_b(before, tag) else tag)
        before = tag
    return found


def check_scheme(path: Path, sentences: Sequence[Sentence], scheme: str) -> int:
    """Return how many entities begin with ``I-``; refuse a file whose tags do not keep to one scheme.

    ``auto`` takes what keeps to IOB1 or to IOB2. ``lenient`` takes a mixture: every ``B-``, and every ``I-`` that does
    not continue an entity of its type, begins one.

    Raises:
        DataError: the tags do not keep to the scheme; the message names file and line.
        ConfigError: no such scheme.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    without_b = list(_places(sentences, _starts_without_b))
    needless_b = next(_places(sentences, _needless_b), None)
    not_iob2 = without_b[0] if without_b else None
    if scheme == "auto" and not_iob2 and needless_b:
        raise DataError(
            f"{path}:{not_iob2[0]}: tag {not_iob2[1]!r} begins an entity, which is IOB1, but line {needless_b[0]} "
            f"begins one with {needless_b[1]!r}, which is IOB2; correct the tags so that the file keeps to one of them"
        )
    if scheme == "IOB2" and not_iob2:
        raise DataError(f"{path}:{not_iob2[0]}: tag {not_iob2[1]!r} begins an entity; in IOB2 that is B-")
    if scheme == "IOB1" and needless_b:
        raise DataError(
            f"{path}:{needless_b[0]}: tag {needless_b[1]!r} does not follow an entity of its type; in IOB1 that is I-"
        )
    return len(without_b)


def fields_of(line: str) -> list[str]:
    """Return the columns of a line, separated by tabs or else by blanks."""
    # only blanks and tabs: a no-break space and the like are part of a word
    line = line.rstrip(" \t\r")
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def begins_document(fields: Sequence[str]) -> bool:
    """Say whether a line begins a document."""
    if not fields:
        return False
    # '#doc' with a tag is a word, a hashtag
    return fields[0] == _DOCSTART or (fields[0] == _DOC and not _TAG.fullmatch(fields[-1]))


def word_of(where: str, fields: Sequence[str], word_column: int = 0) -> str:
    """Return the word of a line; DataError where it is empty."""
    word = fields[word_column]
    if not word.strip():
        raise DataError(f"{where}: the word is empty; remove the line, or leave it wholly blank to end the sentence")
    return word


def _word(where: str, fields: Sequence[str], word_column: int, tag_column: int) -> tuple[str, str]:
    needed = max(2, word_column + 1, tag_column + 1)
    if len(fields) < needed:
        raise DataError(
            f"{where}: the line has {len(fields)} column{'' if len(fields) == 1 else 's'} ({' '.join(fields)!r}), "
            f"expected at least {needed}: a word and its tag, separated by a tab or blanks"
        )
    word, tag = word_of(where, fields, word_column), fields[tag_column]
    if not _TAG.fullmatch(tag):
        raise DataError(
            f"{where}: tag {tag!r} is not known; expected O, B-<type> or I-<type> (other schemes, such as BIOES, have "
            "to be converted first)"
        )
    return word, tag


def _sentence(words: Sequence[tuple[int, str, str]], document: str | None) -> Sentence:
    lines, texts, tags = zip(*words, strict=True)
    return Sentence(texts, tags, lines, document)


def _places(sentences: Sequence[Sentence], test: Callable[[str, str], bool]) -> Iterator[tuple[int, str]]:
    """Yield line and tag wherever the test holds for the tag before and the tag."""
    for sentence in sentences:
        pairs = zip((OUTSIDE, *sentence.tags), sentence.tags, sentence.lines, strict=False)
        yield from ((line, tag) for before, tag, line in pairs if test(before, tag))


def _continues(before: str, tag: str) -> bool:
    return before[2:] == tag[2:]  # O has no type


def _starts_without_b(before: str, tag: str) -> bool:
    return tag.startswith("I-") and not _continues(before, tag)


def _needless_b(before: str, tag: str) -> bool:
    return tag.startswith("B-") and not _continues(before, tag)
