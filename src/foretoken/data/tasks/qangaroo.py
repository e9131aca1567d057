"""WikiHop and MedHop (QAngaroo v1.1): a question, candidate answers, and the documents to combine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.data.documents import Corpus, refuse_repeated_ids
from foretoken.data.examples import Candidates
from foretoken.data.problems import CANDIDATES
from foretoken.data.readers.files import local_path
from foretoken.data.readers.hub_tables import hub_rows
from foretoken.data.readers.json_stream import stream_objects
from foretoken.data.readers.raw_files import dev_as_test, raw_file
from foretoken.data.readers.rows import Row, check_columns, row_id, text_value
from foretoken.data.tasks.base import CLEAN, OFFICIAL, HubSource, Task
from foretoken.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions

_INPUTS = ("query", "candidates", "supports")
_FIELDS = (*_INPUTS, "answer")
_HUB = "community-datasets/qangaroo"


def read_candidates(path: str | Path, *, labelled: bool = True) -> list[Candidates]:
    """Return the questions of a QAngaroo file: a JSON list of {id, query, candidates, answer, supports}.

    The file is read item by item. Texts stay as published; ``answer`` becomes its number among the candidates, and is
    not needed, and taken as 0, without ``labelled``.

    Raises:
        DataError: the file or an item is malformed, or an answer is not among its candidates.

    >>> file = getfixture("tmp_path") / "dev.json"
    >>> item = '{"id": "1", "query": "country rome", "candidates": ["italy", "gaul"], "answer": "italy",'
    >>> _ = file.write_text(f'[{item} "supports": ["Rome is in Italy ."]}}]')
    >>> [(example.question, example.answer) for example in read_candidates(file)]
    [('country rome', 0)]
    """
    path = local_path(path)
    rows = enumerate(stream_objects(path))
    return _checked(str(path), [_example(number, row, labelled=labelled) for number, row in rows])


def _checked(source: str, examples: list[Candidates]) -> list[Candidates]:
    if not examples:
        raise DataError(f"{source}: has no questions; expected a list of objects with {', '.join(_FIELDS)}")
    refuse_repeated_ids(examples)
    return examples


def _example(number: int, row: Row, *, labelled: bool = True) -> Candidates:
    where, values = row
    check_columns(where, values, _FIELDS if labelled else _INPUTS)
    candidates = _texts(where, values, "candidates")
    answer = _answer(where, values, candidates) if labelled else 0
    question = text_value(where, values["query"], "query")
    if not question.strip():
        raise DataError(f"{where}: the query is empty; expected a question")
    supports = _texts(where, values, "supports")
    return Candidates(row_id(where, values, number), question, candidates, supports, answer, where)


def _answer(where: str, values: Mapping[str, Any], candidates: tuple[str, ...]) -> int:
    answer = text_value(where, values["answer"], "answer")
    if answer not in candidates:
        raise DataError(
            f"{where}: the answer {answer!r} is not among the {len(candidates)} candidates"
            f"{did_you_mean(answer, candidates)}; it has to be one of them, letter by letter"
        )
    return candidates.index(answer)


def _texts(where: str, values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = values[name]
    if not isinstance(found, list) or not found:
        raise DataError(f"{where}: {name!r} holds {found!r}, expected a list of at least one text")
    return tuple(text_value(where, text, name) for text in found)


def _task(hop: str, masked: bool, title: str, summary: str, sizes: str, licence: str) -> Task:
    name = f"{hop}-masked" if masked else hop
    suffix = ".masked.json" if masked else ".json"
    config = f"masked_{hop}" if masked else hop

    def read(path: Path | None, options: DataOptions) -> Corpus:
        train, dev = (read_candidates(raw_file(path, (f"{part}{suffix}",), name)) for part in ("train", "dev"))
        return Corpus(dict(dev_as_test(name, train, dev, options)), problem=CANDIDATES)

    def read_hub(_: Task, options: DataOptions) -> Corpus:
        splits = {
            split: _checked(_HUB, [_example(number, row) for number, row in enumerate(rows)])
            for split, rows in hub_rows(_HUB, config, _FIELDS).items()
        }
        return Corpus(dict(dev_as_test(name, splits["train"], splits["validation"], options)), problem=CANDIDATES)

    return Task(
        name=name,
        title=title,
        summary=summary,
        metric="accuracy",
        labels=(),
        source=f"train{suffix}, dev{suffix} of qangaroo_v1.1.zip, https://qangaroo.cs.ucl.ac.uk",
        licence=licence,
        hub=HubSource(_HUB, read_hub),
        reader=read,
        problem=CANDIDATES,
        sizes=sizes,
        folder=f"qangaroo_v1.1/{hop}",
        splits=(CLEAN, OFFICIAL),
    )


_WIKIHOP = "Questions whose answer needs several Wikipedia paragraphs, with candidate answers."
_MEDHOP = "Interactions of drugs, to be found by combining abstracts of Medline, with candidate drugs."
_MASKED = " Candidates are replaced by ___MASK<number>___ in all texts."

TASKS: tuple[Task, ...] = (
    _task("wikihop", False, "WikiHop", _WIKIHOP, "39,364 / 4,374 / 5,129", "CC BY-SA 3.0"),
    _task("wikihop", True, "WikiHop, masked", _WIKIHOP + _MASKED, "39,364 / 4,374 / 5,129", "CC BY-SA 3.0"),
    _task("medhop", False, "MedHop", _MEDHOP, "1,458 / 162 / 342", "CC BY-SA 3.0"),
    _task("medhop", True, "MedHop, masked", _MEDHOP + _MASKED, "1,458 / 162 / 342", "CC BY-SA 3.0"),
)
