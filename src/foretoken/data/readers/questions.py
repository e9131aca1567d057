"""Questions about contexts: files in SQuAD's format, and tables with one row per question."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from foretoken.data.examples import QuestionExample
from foretoken.data.problems import QUESTION_ANSWERING
from foretoken.data.readers.files import read_text, without_gz
from foretoken.data.readers.json_files import read_json
from foretoken.data.readers.rows import (
    ANSWERS,
    CONTEXT,
    QUESTION,
    ColumnNames,
    Row,
    field_of,
    filled,
    read_each,
    row_id,
)
from foretoken.errors import DataError

_log = logging.getLogger(__name__)
_field = partial(field_of, record="SQuAD v1.1 or v2.0")
Span = tuple[int, int]
_SQUAD = ColumnNames(problem=QUESTION_ANSWERING)


def is_squad(path: Path, encoding: str) -> bool:
    """Tell whether a file is in SQuAD's format: a .json file with one object that has articles."""
    if without_gz(path).suffix.lower() != ".json":
        return False
    text = read_text(path, encoding, errors="surrogateescape")
    return '"paragraphs"' in text or '"question"' not in text  # in a text, these quotes would have backslashes


def read_squad(path: Path, columns: ColumnNames = _SQUAD) -> list[QuestionExample]:
    """Return the questions of a file in SQuAD's format, v1.1 or v2.0; the questions of an article form a group.

    A question with ``is_impossible: true`` has no answer. If ``columns.label`` is None, answers are not read.

    Raises:
        DataError: the file or a record is malformed, or an answer is not in its context.
    """
    articles = _list(str(path), read_json(path, columns.format.encoding), "data")
    places = _Places(path)
    rows = (row for number, article in enumerate(articles, 1) for row in _squad_rows(path, number, article))
    return _questions(path, rows, partial(_squad_question, places, columns.label is not None), columns, places)


def questions_from_rows(source: Path | str, rows: Iterable[Row], columns: ColumnNames) -> list[QuestionExample]:
    """Return the questions of a table; those about the same context form a group.

    ``answers`` holds ``{"text": [...], "answer_start": [...]}``, as data sets on the hub have it, or a list of
    ``{"text": ..., "answer_start": ...}``. A question without any has no answer.

    Raises:
        DataError: there are no rows, a value is missing or empty, or an answer is not in its context.
    """
    places = _Places(source)

    def read(where: str, values: Mapping[str, Any], number: int) -> QuestionExample:
        context = filled(where, values[CONTEXT], CONTEXT)
        answers = () if columns.label is None else _given(where, values[ANSWERS])
        return QuestionExample(
            row_id(where, values, number),
            filled(where, values[QUESTION], QUESTION).strip(),
            context,
            places.of(where, context, answers),
            where,
        )

    groups: dict[str, str] = {}
    return [
        replace(question, group=groups.setdefault(question.context, f"context {len(groups) + 1}"))
        for question in _questions(source, rows, read, columns, places)
    ]


class _Places:
    """Finds answers in their contexts, and counts those whose position in the record is wrong."""

    def __init__(self, source: Path | str) -> None:
        self.source = source
        self.moved: list[str] = []

    def of(self, where: str, context: str, answers: Iterable[tuple[str, int]]) -> tuple[Span, ...]:
        """Return the first character and the one after the last of each different answer, in order."""
        return tuple(dict.fromkeys(self._find(where, context, text, start) for text, start in answers))

    def _find(self, where: str, context: str, text: str, start: int) -> Span:
        if context[start : start + len(text)] != text or start < 0:
            starts = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
            if not starts:
                raise DataError(
                    f"{where}: the answer {text[:80]!r} is not in the context; it has to be a part of it, letter by "
                    "letter"
                )
            start = min(starts, key=lambda at: abs(at - start))
            self.moved.append(where)
        return start, start + len(text)

    def say(self) -> None:
        """Log the number of answers with a wrong position."""
        if self.moved:
            _log.warning(
                "%s: %d answers do not begin at their answer_start (the first at %s); the nearest place that has "
                "their text is taken",
                *(self.source, len(self.moved), self.moved[0]),
            )


def _squad_rows(path: Path, number: int, article: object) -> Iterator[Row]:
    for here, paragraph in _each(f"{path}:article {number}", article, "paragraphs", "paragraph"):
        for where, asked in _each(here, paragraph, "qas", "question"):
            if isinstance(asked, DataError):
                yield where, asked
                continue
            name = asked.get("id") if isinstance(asked, Mapping) else None
            named = where if name is None else f"{here}, question {str(name)!r}"
            yield named, {"id": name, "paragraph": paragraph, "asked": asked, "group": f"article {number}"}


def _each(where: str, values: object, name: str, what: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list in a record with their places, or the error if there is no such list."""
    try:
        if isinstance(values, DataError):
            raise values
        for count, value in enumerate(_list(where, values, name), 1):
            yield f"{where}, {what} {count}", value
    except DataError as error:
        yield where, error


def _squad_question(
    places: _Places, labelled: bool, where: str, values: Mapping[str, Any], number: int
) -> QuestionExample:
    _field(where, values["asked"], "id")
    context = filled(where, _field(where, values["paragraph"], "context"), "context")
    question = filled(where, _field(where, values["asked"], "question"), "question").strip()
    answers = _squad_answers(where, values["asked"]) if labelled else ()
    spans = places.of(where, context, answers)
    return QuestionExample(row_id(where, values, number), question, context, spans, where, group=values["group"])


def _squad_answers(where: str, asked: Mapping[str, Any]) -> Sequence[tuple[str, int]]:
    if asked.get("is_impossible") is True:
        return ()
    answers = _given(where, _field(where, asked, "answers"))
    if not answers:
        raise DataError(f"{where}: no answers; a question without one says so with 'is_impossible': true")
    return answers


def _given(where: str, value: object) -> list[tuple[str, int]]:
    """Return the text and the first character of each answer of a record."""
    if isinstance(value, Mapping):
        texts, starts = _field(where, value, "text"), _field(where, value, "answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise DataError(f"{where}: 'answers' holds {value!r:.80}, expected as many texts as values of answer_start")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list):
        pairs = [(_field(where, item, "text"), _field(where, item, "answer_start")) for item in value]
    else:
        raise DataError(
            f"{where}: 'answers' holds {type(value).__name__}, expected texts with their answer_start (jsonl, json and "
            "parquet files can hold such lists)"
        )
    for text, start in pairs:
        filled(where, text, "text")
        if not isinstance(start, int) or isinstance(start, bool):
            raise DataError(f"{where}: answer_start is {start!r}, expected the number of a character of the context")
    return pairs


def _list(where: str, values: object, name: str) -> list[Any]:
    items = _field(where, values, name)
    if not isinstance(items, list):
        raise DataError(f"{where}: {name!r} holds {type(items).__name__}, expected a list")
    return items


def _questions(
    source: Path | str,
    rows: Iterable[Row],
    read: Callable[[str, Mapping[str, Any], int], QuestionExample],
    columns: ColumnNames,
    places: _Places,
) -> list[QuestionExample]:
    none = f"{source}: has no questions; expected at least one question with its context"
    questions = read_each(rows, read, columns, none)
    places.say()
    return questions
