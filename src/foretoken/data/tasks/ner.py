"""Named entities: CoNLL-2003, CoNLL-2004 and WNUT-17."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from foretoken.data.examples import OUTSIDE, TaggedExample
from foretoken.data.problems import TOKEN_CLASSIFICATION
from foretoken.data.readers.conll import read_tagged, to_iob2
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.rows import Row
from foretoken.data.tasks.base import Task, from_files, from_hub
from foretoken.errors import DataError

_HUB_COLUMNS = ("tokens", "ner_tags")  # the tags are names or class numbers


def _from_hub(_: str, rows: Iterable[Row]) -> list[TaggedExample]:
    return [_example(number, row) for number, row in enumerate(rows) if row[1]["tokens"]]


def _example(number: int, row: Row) -> TaggedExample:
    where, values = row
    words, tags = values["tokens"], values["ner_tags"]
    if len(words) != len(tags):
        raise DataError(f"{where}: {len(words)} tokens but {len(tags)} ner_tags; every word needs one tag")
    return TaggedExample(str(number), tuple(words), tuple(to_iob2(tags)), where)


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
        hub=from_hub("lukasgarbas/conll-03", _HUB_COLUMNS, _from_hub),
        reader=from_files(
            "conll2003",
            {
                "train": ("eng.train", "train.txt"),
                "validation": ("eng.testa", "valid.txt", "dev.txt"),
                "test": ("eng.testb", "test.txt"),
            },
            read_tagged,
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
        reader=from_files(
            "conll2004",
            {"train": ("train.txt",), "validation": ("dev.txt",), "test": ("test.txt",)},
            partial(read_tagged, word_column=1, tag_column=2, scheme="lenient"),  # two entities of train begin with I-
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
        hub=from_hub("leondz/wnut_17", _HUB_COLUMNS, _from_hub, revision=PARQUET),
        reader=from_files(
            "wnut17",
            {
                "train": ("wnut17train.conll",),
                "validation": ("emerging.dev.conll",),
                "test": ("emerging.test.annotated",),
            },
            partial(read_tagged, tag_column=1),  # columns after it are of no concern
        ),
        problem=TOKEN_CLASSIFICATION,
        sizes="3,394 / 1,009 / 1,287",
    ),
)
