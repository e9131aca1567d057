"""SQuALITY v1.3: questions about stories of five thousand words, answered by four people each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from foretoken.data.documents import refuse_repeated_ids
from foretoken.data.examples import GenerationExample
from foretoken.data.readers.rows import UsableRow, field_of, filled
from foretoken.errors import DataError

_field = partial(field_of, record="SQuALITY v1.3")


def from_rows(_: str, rows: Iterable[UsableRow]) -> list[GenerationExample]:
    """Return one example per question: the question, a blank line and the story; the answers are the references.

    The questions of a story form a group.
    """
    examples = [example for where, story in rows for example in _questions(where, story)]
    refuse_repeated_ids(examples)
    return examples


def _questions(where: str, story: Mapping[str, object]) -> Iterator[GenerationExample]:
    document = filled(where, story["document"], "document").strip()
    name = str(_field(where, story["metadata"], "passage_id"))
    if not isinstance(story["questions"], list) or not story["questions"]:
        raise DataError(f"{where}: 'questions' holds no list of questions; expected at least one")
    for number, question in enumerate(story["questions"], start=1):
        here = f"{where}: question {number}"
        text = filled(here, _field(here, question, "question_text"), "question_text").strip()
        yield GenerationExample(
            f"{name}/{number}", f"{text}\n\n{document}", _answers(here, question), where, group=name
        )


def _answers(where: str, question: object) -> tuple[str, ...]:
    responses = _field(where, question, "responses")
    if not isinstance(responses, list) or not responses:
        raise DataError(f"{where} has no responses; expected at least one answer")
    return tuple(
        filled(where, _field(where, response, "response_text"), "response_text").strip() for response in responses
    )
