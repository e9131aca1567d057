"""Files with one word and its tag per line (CoNLL)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from foretoken.data.examples import TaggedExample
from foretoken.data.problems import TOKEN_CLASSIFICATION
from foretoken.data.readers.files import local_path
from foretoken.data.readers.formats import UTF_8
from foretoken.data.readers.rows import ColumnNames
from foretoken.data.readers.tagging.blocks import blocks_of, lines_of, places_of, read_blocks
from foretoken.data.readers.tagging.schemes import BIO
from foretoken.data.readers.tagging.sentences import tagged_examples

_TAGGED = ColumnNames(problem=TOKEN_CLASSIFICATION)


def read_tagged(
    path: str | Path,
    encoding: str = UTF_8,
    *,
    lenient: bool = False,
    word_column: int | None = None,
    tag_column: int = -1,
    columns: ColumnNames = _TAGGED,
) -> list[TaggedExample]:
    r"""Return the sentences of a file of words and tags, with tags of entities in IOB2.

    One word per line, its tag in the last column, columns separated by tabs or blanks; a blank line, also one of
    blanks and tabs, ends a sentence. A line ``-DOCSTART-`` or ``#doc <id>`` begins a document, which becomes
    the ``group`` of its sentences. Comments (``# text = ...``) stand before a sentence. The words are in the
    first column, or the second where the first one numbers them, unless ``word_column``, from 0, says where.

    ``lenient`` accepts a mixture of IOB1 and IOB2: every ``B-``, and every ``I-`` that does not continue an entity of
    its type, begins one. Sentences with a malformed line or tag go to ``columns.bad_rows``.

    Raises:
        DataError: a line is malformed, a tag unknown, or the tags are of different schemes; it names file and line.

    >>> file = getfixture("tmp_path") / "mine.txt"
    >>> _ = file.write_text("Ada I-PER\nLovelace I-PER\nwrote O\n")
    >>> read_tagged(file)[0].tags
    ('B-PER', 'I-PER', 'O')
    """
    path = local_path(path)
    blocks = blocks_of(lines_of(path, encoding))
    sentences = read_blocks(blocks, places_of(blocks, word_column, tag_column if columns.label is not None else None))
    return tagged_examples(str(path), sentences, replace(columns, scheme=BIO) if lenient else columns)


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
