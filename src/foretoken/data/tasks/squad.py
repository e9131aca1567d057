"""SQuAD v1.1 and v2.0: questions about paragraphs of Wikipedia that hold their answers."""

from __future__ import annotations

from collections.abc import Iterable

from foretoken.data.examples import QuestionExample
from foretoken.data.problems import QUESTION_ANSWERING
from foretoken.data.readers.questions import questions_from_rows, read_squad
from foretoken.data.readers.rows import ColumnNames, Row
from foretoken.data.tasks.base import CLEAN, OFFICIAL, Task, from_files, from_hub

_COLUMNS = ColumnNames(problem=QUESTION_ANSWERING)


def _from_hub(source: str, rows: Iterable[Row]) -> list[QuestionExample]:
    return questions_from_rows(source, rows, _COLUMNS)


def _task(name: str, version: str, hub: str, summary: str, sizes: str) -> Task:
    return Task(
        name=name,
        title=f"SQuAD {version}",
        summary=summary,
        metric="token_f1",
        sizes=sizes,
        source=f"train-{version}.json, dev-{version}.json, https://rajpurkar.github.io/SQuAD-explorer/",
        licence="CC BY-SA 4.0",
        reader=from_files(
            name, {"train": (f"train-{version}.json",), "validation": (f"dev-{version}.json",)}, read_squad
        ),
        hub=from_hub(hub, _COLUMNS.needed, _from_hub),
        problem=QUESTION_ANSWERING,
        folder="squad",
        splits=(CLEAN, OFFICIAL),
    )


TASKS: tuple[Task, ...] = (
    _task(
        "squad",
        "v1.1",
        "rajpurkar/squad",
        "Questions about paragraphs of Wikipedia, whose answers are parts of them. The official dev set is the test; "
        "validation has articles of its own.",
        "87,599 (validation taken from them) / 10,570",
    ),
    _task(
        "squad2",
        "v2.0",
        "rajpurkar/squad_v2",
        "The same with questions that the paragraph does not answer, a third of train and half of the test.",
        "130,319 (validation taken from them) / 11,873",
    ),
)
