"""SQuALITY v1.3: questions about stories of five thousand words, answered by four people each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.data.documents import Corpus, refuse_repeated_ids
from foretoken.data.examples import Generation
from foretoken.data.problems import GENERATION
from foretoken.data.readers.generation_files import filled
from foretoken.data.readers.hub_tables import hub_rows
from foretoken.data.readers.raw_files import raw_file
from foretoken.data.readers.rows import Row
from foretoken.data.readers.tables import read_rows
from foretoken.errors import DataError

if TYPE_CHECKING:
    from foretoken.data.options import DataOptions
    from foretoken.data.tasks.base import Task

_FILES = {"train": "train.jsonl", "validation": "dev.jsonl", "test": "test.jsonl"}
_FIELDS = ("metadata", "document", "questions")
HUB = "pszemraj/SQuALITY-v1.3"


def read(path: Path | None, _: DataOptions) -> Corpus:
    """Return one example per question: the question, a blank line and the story; the answers are the references.

    The questions of a story form a group.

    Raises:
        DataError: a file is missing, or a line is malformed; the message names file and line.
    """
    files = {split: raw_file(path, (name,), "squality") for split, name in _FILES.items()}
    return _corpus({split: read_rows(file, _FIELDS) for split, file in files.items()})


def read_hub(_: Task, __: DataOptions) -> Corpus:
    """Return the hub copy, which has the same records."""
    return _corpus(hub_rows(HUB, None, _FIELDS))


def _corpus(rows: Mapping[str, Iterable[Row]]) -> Corpus:
    splits: dict[str, list[Any]] = {}
    for split, items in rows.items():
        splits[split] = [example for where, story in items for example in _questions(where, story)]
        refuse_repeated_ids(splits[split])
    return Corpus(splits, problem=GENERATION)


def _questions(where: str, story: Mapping[str, Any]) -> Iterator[Generation]:
    document = filled(where, story["document"], "document").strip()
    name = str(_field(where, story["metadata"], "passage_id"))
    if not isinstance(story["questions"], list) or not story["questions"]:
        raise DataError(f"{where}: 'questions' holds no list of questions; expected at least one")
    for number, question in enumerate(story["questions"], start=1):
        here = f"{where}: question {number}"
        text = filled(here, _field(here, question, "question_text"), "question_text").strip()
        yield Generation(f"{name}/{number}", f"{text}\n\n{document}", _answers(here, question), where, group=name)


def _answers(where: str, question: Any) -> tuple[str, ...]:
    responses = _field(where, question, "responses")
    if not isinstance(responses, list) or not responses:
        raise DataError(f"{where} has no responses; expected at least one answer")
    return tuple(
        filled(where, _field(where, response, "response_text"), "response_text").strip() for response in responses
    )


def _field(where: str, values: Any, name: str) -> Any:
    if not isinstance(values, Mapping) or name not in values:
        raise DataError(f"{where}: no {name!r}; expected a record of SQuALITY v1.3")
    return values[name]
