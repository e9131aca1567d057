"""Named entities: CoNLL-2003, CoNLL-2004, WNUT-17, and your own files of that kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.data.documents import Corpus
from foretoken.data.examples import Tagged
from foretoken.data.problems import TOKEN_CLASSIFICATION
from foretoken.data.readers.conll import Sentence, check_scheme, read_sentences, to_iob2
from foretoken.data.readers.files import local_path
from foretoken.data.readers.hub_tables import PARQUET, hub_rows
from foretoken.data.readers.raw_files import raw_file
from foretoken.data.readers.rows import Row
from foretoken.data.tags import OUTSIDE
from foretoken.data.tasks.base import HubSource, Task
from foretoken.errors import DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions

_log = logging.getLogger(__name__)
_Reader = Callable[["Path | None", "DataOptions"], Corpus]


def read_tagged(path: str | Path, *, scheme: str = "auto", word_column: int = 0, tag_column: int = -1) -> list[Tagged]:
    r"""Return the sentences of a file of words and tags, with the tags in IOB2.

    One word per line, its tag in the last column, columns separated by tabs or blanks; a blank line ends a sentence.
    A line ``-DOCSTART-`` or ``#doc <id>`` begins a document, which becomes the ``group`` of its sentences.
    ``scheme`` is what the file's tags keep to, see :func:`foretoken.data.readers.conll.check_scheme`.

    Raises:
        DataError: a malformed line, an unknown tag or tags of no one scheme; the message names file and line.
        ConfigError: no such scheme.

    >>> file = getfixture("tmp_path") / "mine.txt"
    >>> _ = file.write_text("Ada I-PER\nLovelace I-PER\nwrote O\n")
    >>> read_tagged(file)[0].tags
    ('B-PER', 'I-PER', 'O')
    """
    path = local_path(path)
    sentences = read_sentences(path, word_column=word_column, tag_column=tag_column)
    repaired = check_scheme(path, sentences, scheme)
    if scheme == "lenient" and repaired:
        _log.info("%s: %d entities begin with I-; they are read as B-", path, repaired)
    return [_tagged(path, number, sentence) for number, sentence in enumerate(sentences)]


def join(sentences: Iterable[Tagged]) -> list[Tagged]:
    """Return one example per document: the sentences of one ``group`` that follow each other, joined.

    Sentences without a group stay as they are. No entity crosses a sentence, so no tag changes.
    """
    joined: list[Tagged] = []
    for (group, _), items in groupby(sentences, key=lambda sentence: (sentence.group, sentence.part)):
        members = list(items)
        joined.extend(members if group is None else [_joined(members)])
    return joined


def _joined(members: Sequence[Tagged]) -> Tagged:
    first = members[0]
    words = tuple(word for member in members for word in member.words)
    tags = tuple(tag for member in members for tag in member.tags)
    return Tagged(first.id, words, tags, first.where, first.group, first.part)


def _tagged(path: Path, number: int, sentence: Sentence) -> Tagged:
    tags = tuple(to_iob2(sentence.tags))
    return Tagged(str(number), sentence.words, tags, f"{path}:{sentence.lines[0]}", sentence.document)


def _reader(task: str, files: Mapping[str, Sequence[str]], **layout: Any) -> _Reader:
    """Return the reader of a task: the patterns of its files by split, and how :func:`read_tagged` reads them."""

    def read(path: Path | None, _: DataOptions) -> Corpus:
        found = {split: raw_file(path, patterns, task) for split, patterns in files.items()}
        splits = {split: read_tagged(file, **layout) for split, file in found.items()}
        return Corpus(dict(splits), problem=TOKEN_CLASSIFICATION)

    return read


def _hub(name: str, config: str | None = None, revision: str | None = None) -> HubSource:
    """Return a hub source with the columns ``tokens`` and ``ner_tags``, which are names or class numbers."""

    def read(_: Task, __: DataOptions) -> Corpus:
        rows = hub_rows(name, config, ("tokens", "ner_tags"), revision)
        splits: dict[str, list[Any]] = {
            split: [_from_row(number, row) for number, row in enumerate(items) if row[1]["tokens"]]
            for split, items in rows.items()
        }
        return Corpus(splits, problem=TOKEN_CLASSIFICATION)

    return HubSource(name, read)


def _from_row(number: int, row: Row) -> Tagged:
    where, values = row
    words, tags = values["tokens"], values["ner_tags"]
    if len(words) != len(tags):
        raise DataError(f"{where}: {len(words)} tokens but {len(tags)} ner_tags; every word needs one tag")
    return Tagged(str(number), tuple(words), tuple(to_iob2(tags)), where)


def _tags(*types: str) -> tuple[str, ...]:
    return (OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI"))


TASKS: tuple[Task, ...] = (
    Task(
        name="conll2003",
        title="CoNLL-2003",
        summary="English news of 1996: persons, locations, organisations and others. Documents are kept together.",
        metric="f1",
        labels=_tags("LOC", "MISC", "ORG", "PER"),
        source="eng.train, eng.testa, eng.testb, https://www.clips.uantwerpen.be/conll2003/ner/ (the text is Reuters')",
        licence="Reuters corpus: research use, by agreement with NIST",
        hub=_hub("lukasgarbas/conll-03"),
        reader=_reader(
            "conll2003",
            {
                "train": ("eng.train", "train.txt"),
                "validation": ("eng.testa", "valid.txt", "dev.txt"),
                "test": ("eng.testb", "test.txt"),
            },
        ),
        problem=TOKEN_CLASSIFICATION,
        sizes="14,041 / 3,250 / 3,453",
    ),
    Task(
        name="conll2004",
        title="CoNLL-2004 (entities)",
        summary="News sentences with persons, locations, organisations and others (Roth and Yih), in the split of "
        "Gupta et al.; relations are not read.",
        metric="f1",
        labels=_tags("Loc", "Org", "Other", "Peop"),
        source="train.txt, dev.txt, test.txt, data/CoNLL04 of "
        "https://github.com/bekou/multihead_joint_entity_relation_extraction",
        licence="no explicit data licence; AP and WSJ sentences",
        hub=None,  # the copies there have the split 922 / 231 / 288
        reader=_reader(
            "conll2004",
            {"train": ("train.txt",), "validation": ("dev.txt",), "test": ("test.txt",)},
            word_column=1,
            tag_column=2,
            scheme="lenient",  # two entities of train begin with I-
        ),
        problem=TOKEN_CLASSIFICATION,
        sizes="910 / 243 / 288",
    ),
    Task(
        name="wnut17",
        title="WNUT-17",
        summary="Social media: six types of entities that are rare or new (emerging entities).",
        metric="f1",
        labels=_tags("corporation", "creative-work", "group", "location", "person", "product"),
        source="wnut17train.conll, emerging.dev.conll, emerging.test.annotated, "
        "https://github.com/leondz/emerging_entities_17",
        licence="CC BY 4.0",
        hub=_hub("leondz/wnut_17", revision=PARQUET),
        reader=_reader(
            "wnut17",
            {
                "train": ("wnut17train.conll",),
                "validation": ("emerging.dev.conll",),
                "test": ("emerging.test.annotated",),
            },
            tag_column=1,  # columns after it are of no concern
        ),
        problem=TOKEN_CLASSIFICATION,
        sizes="3,394 / 1,009 / 1,287",
    ),
)
