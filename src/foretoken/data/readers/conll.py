"""Files with one word and its tag per line (CoNLL), and the tag schemes IOB1 and IOB2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from foretoken.data.examples import OUTSIDE, TaggedExample
from foretoken.data.problems import TOKEN_CLASSIFICATION
from foretoken.data.readers.encodings import UTF_8
from foretoken.data.readers.files import as_text, kind_of, local_path, read_unpacked, text_lines, without_gz
from foretoken.data.readers.rows import ColumnNames, read_each
from foretoken.errors import DataError

_DOCSTART = "-DOCSTART-"
_DOC = "#doc"
_FORMAT = "write one word per line, with its tag (CoNLL), as .conll, .tsv or .txt"
_TABLES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
_TAGGED = ColumnNames(problem=TOKEN_CLASSIFICATION)
_TAG = re.compile(r"O|[BI]-\S+")


@dataclass(frozen=True)
class _Block:
    """The lines of a sentence, each with its number."""

    lines: Sequence[tuple[int, list[str]]]
    document: str | None


@dataclass(frozen=True)
class _Sentence:
    """The words of a sentence with their tags as they are in the file; ``lines`` has the line of each word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...]
    document: str | None = None


def read_tagged(
    path: str | Path,
    encoding: str = UTF_8,
    *,
    lenient: bool = False,
    word_column: int | None = None,
    tag_column: int = -1,
    columns: ColumnNames = _TAGGED,
) -> list[TaggedExample]:
    r"""Return the sentences of a file of words and tags, with the tags in IOB2.

    One word per line, its tag in the last column, columns separated by tabs or blanks; a blank line, also one of
    blanks and tabs, ends a sentence. A line ``-DOCSTART-`` or ``#doc <id>`` begins a document, which becomes the
    ``group`` of its sentences. Comments (``# text = ...``) stand before a sentence. The words are in the first column,
    or the second where the first one numbers them, unless ``word_column``, from 0, says where.

    The tags keep to IOB1 or to IOB2. ``lenient`` takes a mixture: every ``B-``, and every ``I-`` that does not continue
    an entity of its type, begins one. Sentences with a malformed line or tag go to ``columns.bad_rows``.

    Raises:
        DataError: a malformed line, an unknown tag or tags of no one scheme; the message names file and line.

    >>> file = getfixture("tmp_path") / "mine.txt"
    >>> _ = file.write_text("Ada I-PER\nLovelace I-PER\nwrote O\n")
    >>> read_tagged(file)[0].tags
    ('B-PER', 'I-PER', 'O')
    """
    path = local_path(path)
    expected = "has no sentences; expected one word and its tag per line"
    blocks = _blocks(path, encoding, expected)
    read = partial(_word_and_tag, word_column=_words_at(blocks, word_column), tag_column=tag_column)
    sentences: list[_Sentence] = []

    def make(where: str, block: _Block, number: int) -> TaggedExample:
        sentences.append(sentence := _sentence(path, block, read))
        return TaggedExample(str(number), sentence.words, tuple(to_iob2(sentence.tags)), where, sentence.document)

    examples = read_each(_placed(path, blocks), make, columns, expected)
    if not lenient:
        _refuse_mixture(path, sentences)
    return examples


def tag_columns(paths: Iterable[Path], encoding: str = UTF_8) -> dict[int, Counter[str]]:
    r"""Return the columns behind the first, from 1, whose every value is a tag: how often each type begins an entity.

    The last column is there as -1 too, as lines may differ in their number of columns.

    >>> file = getfixture("tmp_path") / "mine.txt"
    >>> _ = file.write_text("Ada B-PER _ O\nLovelace I-PER _ O\n")
    >>> tag_columns([file])
    {2: Counter({'PER': 1}), 4: Counter(), -1: Counter()}
    """
    types: dict[int, Counter[str]] | None = None
    for block in (block for path in paths for block in _blocks(path, encoding, "has no sentences")):
        before: dict[int, str] = {}
        for _, fields in block.lines:
            tags = {number: tag for number, tag in _numbered(fields) if _TAG.fullmatch(tag)}
            types = {number: types[number] if types else Counter() for number in (types or tags) if number in tags}
            for number in types:
                _count(types[number], before.get(number, OUTSIDE), tags[number])
            before = tags
    return types or {}


def _numbered(fields: Sequence[str]) -> Iterator[tuple[int, str]]:
    yield from enumerate(fields[1:], start=2)
    if len(fields) > 1:
        yield -1, fields[-1]


def _count(types: Counter[str], before: str, tag: str) -> None:
    if tag.startswith("B-") or _starts_without_b(before, tag):
        types[tag[2:]] += 1


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


def read_words(
    path: Path, encoding: str = UTF_8, *, word_column: int | None = None, columns: ColumnNames = _TAGGED
) -> list[TaggedExample]:
    """Return sentences of one word per line, with a blank line between them; what else is in a line is not read.

    Raises:
        DataError: a word is empty, or there are none; the message names file and line.
    """
    expected = "no words; expected one word per line, and a blank line after each sentence"
    blocks = _blocks(path, encoding, expected)
    column = _words_at(blocks, word_column)

    def make(where: str, block: _Block, number: int) -> TaggedExample:
        sentence = _sentence(path, block, lambda place, fields: (_word(place, fields, column), OUTSIDE))
        return TaggedExample(str(number), sentence.words, sentence.tags, where)

    return read_each(_placed(path, blocks), make, columns, expected)


def _placed(path: Path, blocks: Iterable[_Block]) -> Iterator[tuple[str, _Block]]:
    return ((f"{path}:{block.lines[0][0]}", block) for block in blocks)


def _blocks(path: Path, encoding: str, expected: str) -> list[_Block]:
    """Return the lines of every sentence, as fields with their numbers."""
    blocks: list[_Block] = []
    document, documents = None, 0
    lines: list[tuple[int, list[str]]] = []
    for number, line in enumerate([*text_lines(_text(path, encoding)), ""], start=1):
        fields = _fields(line)
        begins = _begins_document(fields)
        if lines and (begins or not fields):
            blocks.append(_Block(lines, document))
            lines = []
        if begins:
            documents += 1
            document = fields[1] if fields[0] == _DOC and len(fields) > 1 else str(documents)
        elif fields and (lines or not _is_comment(line, fields)):
            lines.append((number, fields))
    if not blocks:
        raise DataError(f"{path}: {expected}")
    return blocks


def _words_at(blocks: Sequence[_Block], wanted: int | None) -> int:
    """Return the column of the words, from 0: behind their numbers, as in Universal Dependencies, or else the first."""
    if wanted is not None:
        return wanted
    return int(all(_numbers(block) for block in blocks))


def _numbers(block: _Block) -> bool:
    """Say whether the first column counts the words of a sentence, from 0 or 1, ranges (``1-2``) aside."""
    first = [fields[0] for _, fields in block.lines if len(fields) > 1 and not _TAG.fullmatch(fields[1])]
    counted = [int(name) for name in first if re.fullmatch("[0-9]{1,9}", name)]
    others = [name for name in first if not re.fullmatch("[0-9]+([-.][0-9]+)?", name)]
    is_whole = len(first) == len(block.lines) and not others
    return is_whole and bool(counted) and counted == [*range(counted[0], counted[0] + len(counted))] and counted[0] < 2


def _text(path: Path, encoding: str) -> str:
    """Return the text of a file; of a table DataError, as its lines would be taken for words."""
    content = read_unpacked(path)
    what = kind_of(content, _FORMAT) or ""
    if _FORMAT in what:
        raise DataError(f"{path}:1:1: not text but {what}")
    if without_gz(path).suffix.lower() in _TABLES:
        raise DataError(f"{path}: token classification reads no table: {_FORMAT}")
    return as_text(path, content, encoding)


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


def _is_comment(line: str, fields: Sequence[str]) -> bool:
    # '#' with a tag is a word
    return line.startswith("# ") and (fields[2:3] == ["="] or not _TAG.fullmatch(fields[-1]))


def _word(where: str, fields: Sequence[str], word_column: int) -> str:
    if len(fields) <= word_column:
        raise DataError(
            f"{where}: the line has {len(fields)} columns, and words are read from column {word_column + 1}"
        )
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


def _sentence(path: Path, block: _Block, read: Callable[[str, Sequence[str]], tuple[str, str]]) -> _Sentence:
    words, tags = zip(*(read(f"{path}:{number}", fields) for number, fields in block.lines), strict=True)
    return _Sentence(words, tags, tuple(number for number, _ in block.lines), block.document)


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
