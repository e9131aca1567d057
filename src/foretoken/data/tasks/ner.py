"""Named entities: CoNLL-2003, CoNLL-2004, OntoNotes 5.0 and WNUT-17."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from foretoken.data.documents import Splits
from foretoken.data.examples import OUTSIDE, TaggedExample
from foretoken.data.options import DataOptions
from foretoken.data.problems import TOKEN_CLASSIFICATION
from foretoken.data.readers.conll import read_tagged, to_iob2
from foretoken.data.readers.conll2012 import conll2012_folder, read_conll2012
from foretoken.data.readers.hub import PARQUET
from foretoken.data.readers.rows import Row
from foretoken.data.tasks.base import Task, from_files, from_hub, raw_folder
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


_ONTONOTES = {  # folders of the shared task
    "train": ("train",),
    "validation": ("development", "dev"),
    "test": ("conll-2012-test", "test"),
}
_CONLLX = {  # one file per split, of words and tags behind numbers of words
    "train": ("train.sd.conllx",),
    "validation": ("dev.sd.conllx",),
    "test": ("test.sd.conllx",),
}
_COLUMNS = {"train": ("train.txt",), "validation": ("dev.txt", "valid.txt"), "test": ("test.txt",)}


def _read_ontonotes(path: Path, options: DataOptions) -> Splits:
    """Return the splits of folders of the CoNLL-2012 shared task, of ``*.sd.conllx`` files or of files of columns."""
    folders = {split: conll2012_folder(path, names) for split, names in _ONTONOTES.items()}
    found = {split: folder for split, folder in folders.items() if folder is not None}
    if len(found) == len(_ONTONOTES):
        return {split: read_conll2012(folder) for split, folder in found.items()}
    if found:
        missing = ", ".join(_ONTONOTES[split][-1] for split in _ONTONOTES if split not in found)
        raise DataError(
            f"{path}: no folder {missing} with files *gold_conll beside {', '.join(map(str, found.values()))}"
        )
    if any(raw_folder(path).glob("*.sd.conllx")):
        return from_files("ontonotes", _CONLLX, partial(read_tagged, word_column=1))(path, options)
    return from_files("ontonotes", _COLUMNS, read_tagged)(path, options)


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
        name="ontonotes",
        title="OntoNotes 5.0 (entities)",
        summary="English news, broadcasts, conversations, the web and magazines: eighteen types of entities, in the "
        "splits of CoNLL-2012. Parts of documents are kept together.",
        metric="f1",
        labels=_tags(
            *("CARDINAL", "DATE", "EVENT", "FAC", "GPE", "LANGUAGE", "LAW", "LOC", "MONEY"),
            *("NORP", "ORDINAL", "ORG", "PERCENT", "PERSON", "PRODUCT", "QUANTITY", "TIME", "WORK_OF_ART"),
        ),
        source="the folders train, development and test of the CoNLL-2012 shared task with their gold_conll files, "
        "from LDC2013T19, https://catalog.ldc.upenn.edu/LDC2013T19",
        licence="LDC user agreement",
        reader=_read_ontonotes,
        problem=TOKEN_CLASSIFICATION,
        sizes="59,924 / 8,528 / 8,262",
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
