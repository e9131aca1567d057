"""Files with one word and its tag per line (CoNLL), and the tag schemes IOB1 and IOB2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from foretoken.data.examples import OUTSIDE, TaggedExample
from foretoken.data.readers.encodings import UTF_8
from foretoken.data.readers.files import local_path, read_text, text_lines
from foretoken.errors import DataError

_DOCSTART = "-DOCSTART-"
_DOC = "#doc"
_TAG = re.compile(r"O|[BI]-\S+")


@dataclass(frozen=True)
class _Sentence:
    """The words of a sentence with their tags as they are in the file; ``lines`` has the line of each word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...]
    document: str | None = None


def read_tagged(
    path: str | Path, encoding: str = UTF_8, *, lenient: bool = False, word_column: int = 0, tag_column: int = -1
) -> list[TaggedExample]:
    r"""Return the sentences of a file of words and tags, with the tags in IOB2.

    One word per line, its tag in the last column, columns separated by tabs or blanks; a blank line, also one of
    blanks and tabs, ends a sentence. A line ``-DOCSTART-`` or ``#doc <id>`` begins a document, which becomes the
    ``group`` of its sentences.

    The tags keep to IOB1 or to IOB2. ``lenient`` takes a mixture: every ``B-``, and every ``I-`` that does not continue
    an entity of its type, begins one.

    Raises:
        DataError: a malformed line, an unknown tag or tags of no one scheme; the message names file and line.

    >>> file = getfixture("tmp_path") / "mine.txt"
    >>> _ = file.write_text("Ada I-PER\nLovelace I-PER\nwrote O\n")
    >>> read_tagged(file)[0].tags
    ('B-PER', 'I-PER', 'O')
    """
    path = local_path(path)
    read = partial(_word_and_tag, word_column=word_column, tag_column=tag_column)
    sentences = _read_sentences(path, encoding, read, "has no sentences; expected one word and its tag per line")
    if not lenient:
        _refuse_mixture(path, sentences)
    return [
        TaggedExample(str(number), item.words, tuple(to_iob2(item.tags)), f"{path}:{item.lines[0]}", item.document)
        for number, item in enumerate(sentences)
    ]


def join(sentences: Iterable[TaggedExample]) -> list[TaggedExample]:
    """Return one example per document: the sentences of one ``group`` that follow each other, joined.

    Sentences without a group stay as they are. No entity crosses a sentence, so no tag changes.
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


def read_words(path: Path, encoding: str = UTF_8) -> list[TaggedExample]:
    """Return sentences of one word per line, with a blank line between them; whatever follows a word is not read.

    Raises:
        DataError: a word is empty, or there are none; the message names file and line.
    """
    expected = "no words; expected one word per line, and a blank line after each sentence"
    sentences = _read_sentences(path, encoding, lambda where, fields: (_word(where, fields, 0), OUTSIDE), expected)
    return [TaggedExample(str(n), item.words, item.tags, f"{path}:{item.lines[0]}") for n, item in enumerate(sentences)]


def _read_sentences(
    path: Path, encoding: str, read: Callable[[str, Sequence[str]], tuple[str, str]], expected: str
) -> list[_Sentence]:
    sentences: list[_Sentence] = []
    document, documents = None, 0
    words: list[tuple[int, str, str]] = []
    for number, line in enumerate(text_lines(read_text(path, encoding)), start=1):
        fields = _fields(line)
        begins = _begins_document(fields)
        if words and (begins or not fields):
            sentences.append(_sentence(words, document))
            words = []
        if begins:
            documents += 1
            document = fields[1] if fields[0] == _DOC and len(fields) > 1 else str(documents)
        elif fields:
            words.append((number, *read(f"{path}:{number}", fields)))
    if words:
        sentences.append(_sentence(words, document))
    if not sentences:
        raise DataError(f"{path}: {expected}")
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


def _refuse_mixture(path: Path, sentences: Sequence[_Sentence]) -> None:
    """Refuse a file whose tags do not keep to one scheme."""
    without_b = next(_places(sentences, _starts_without_b), None)
    needless_b = next(_places(sentences, _needless_b), None)
    if without_b and needless_b:
        raise DataError(
            f"{path}:{without_b[0]}: tag {without_b[1]!r} begins an entity, which is IOB1, but line {needless_b[0]} "
            f"begins one with {needless_b[1]!r}, which is IOB2; correct the tags so that the file keeps to one of them"
        )


def _fields(line: str) -> list[str]:
    # only blanks and tabs: a no-break space and the like are part of a word
    line = line.rstrip(" \t")
    return line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]


def _begins_document(fields: Sequence[str]) -> bool:
    if not fields:
        return False
    # '#doc' with a tag is a word, a hashtag
    return fields[0] == _DOCSTART or (fields[0] == _DOC and not _TAG.fullmatch(fields[-1]))


def _word(where: str, fields: Sequence[str], word_column: int) -> str:
    word = fields[word_column]
    if not word.strip():
        raise DataError(f"{where}: the word is empty; remove the line, or leave it wholly blank to end the sentence")
    return word


def _word_and_tag(where: str, fields: Sequence[str], word_column: int, tag_column: int) -> tuple[str, str]:
    needed = max(2, word_column + 1, tag_column + 1)
    if len(fields) < needed:
        raise DataError(
            f"{where}: the line has {len(fields)} column{'' if len(fields) == 1 else 's'} ({' '.join(fields)!r}), "
            f"expected at least {needed}: a word and its tag, separated by a tab or blanks"
        )
    word, tag = _word(where, fields, word_column), fields[tag_column]
    if not _TAG.fullmatch(tag):
        raise DataError(
            f"{where}: tag {tag!r} is not known; expected O, B-<type> or I-<type> (other schemes, such as BIOES, have "
            "to be converted first)"
        )
    return word, tag


def _sentence(words: Sequence[tuple[int, str, str]], document: str | None) -> _Sentence:
    lines, texts, tags = zip(*words, strict=True)
    return _Sentence(texts, tags, lines, document)


def _places(sentences: Sequence[_Sentence], test: Callable[[str, str], bool]) -> Iterator[tuple[int, str]]:
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
