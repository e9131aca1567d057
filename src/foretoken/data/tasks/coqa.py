"""CoQA v1.0: conversations about a passage, from the official JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from foretoken.data.documents import Splits, refuse_repeated_ids
from foretoken.data.examples import GenerationExample
from foretoken.data.options import DataOptions
from foretoken.data.readers.json_files import read_json
from foretoken.data.readers.rows import UsableRow, field_of, filled, text_value
from foretoken.data.splits import digest
from foretoken.data.tasks.base import Markers
from foretoken.errors import DataError

MARKERS = Markers(("<bos_qa>", "<document>", "<question>", "<answer>"), "<answer>", "<eos_qa>")
_TURNS = 2
INSTANCES = "500-instances"
_VALIDATION = 500
_log = logging.getLogger(__name__)
_field = partial(field_of, record="CoQA v1.0")


def read_conversations(path: Path, turns: int = _TURNS) -> list[GenerationExample]:
    """Return one example per question of a CoQA file.

    The source is the passage, the last ``turns`` questions with their answers, and the question (the code of Chen et
    al. 2022 and Lin et al. 2020 keeps two turns):
    ``<bos_qa> <document> ... <question> ... <answer> ... <question> ...``. References are the answer and the additional
    answers, in this order. A conversation is a group; its domain is the part.

    Raises:
        DataError: the file is no CoQA file, or a record is malformed; the message names file and record.
    """
    examples: list[GenerationExample] = []
    for number, record in enumerate(_records(path), start=1):
        examples.extend(_conversation(f"{path}:record {number}", record, turns))
    refuse_repeated_ids(examples)
    return examples


def linearise(story: str, history: Sequence[tuple[str, str]], question: str) -> str:
    """Return the source of a question after a history of (question, answer).

    >>> linearise("Ada has a cat.", [("Who?", "Ada")], "What?")
    '<bos_qa> <document> Ada has a cat. <question> Who? <answer> Ada <question> What?'
    """
    start, document, asked, answered = MARKERS.source
    turns = (f"{asked} {earlier} {answered} {answer}" for earlier, answer in history)
    return " ".join((start, document, story, *turns, asked, question))


def _records(path: Path) -> list[object]:
    content = read_json(path)
    records = content.get("data") if isinstance(content, dict) else None
    if not isinstance(records, list) or not records:
        raise DataError(f"{path}: no list 'data'; expected the object of a CoQA file with its conversations")
    return records


def _conversation(where: str, record: Any, turns: int) -> Iterator[GenerationExample]:
    story = filled(where, _field(where, record, "story"), "story").strip()
    name = str(_field(where, record, "id"))
    questions = _texts(where, record, "questions")
    answers = [_texts(where, record, "answers")]
    additional = record.get("additional_answers", {})
    if not isinstance(additional, dict):
        raise DataError(f"{where}: 'additional_answers' holds {type(additional).__name__}, expected an object")
    answers += [_texts(where, additional, key) for key in sorted(additional)]
    yield from _examples(where, name, str(record.get("source", "")), story, questions, answers, turns)


def _examples(
    where: str,
    name: str,
    domain: str,
    story: str,
    questions: Sequence[str],
    answers: Sequence[Sequence[str]],
    turns: int = _TURNS,
) -> Iterator[GenerationExample]:
    """Yield the examples of one conversation; ``answers`` has one list per annotator, the main one first."""
    for person in answers:
        if len(person) != len(questions):
            raise DataError(f"{where}: {len(questions)} questions but {len(person)} answers; expected one for each")
    past = list(zip(questions, answers[0], strict=True))
    for turn, question in enumerate(questions):
        source = linearise(story, past[max(0, turn - turns) : turn], question)
        references = tuple(person[turn] for person in answers if person[turn])
        if question and references:
            yield GenerationExample(f"{name}/{turn + 1}", source, references, where, group=name, part=domain or None)
        else:
            _log.info("%s: turn %d has an empty question or answer and is left out", where, turn + 1)


def _texts(where: str, values: object, name: str) -> list[str]:
    """Return the texts of a list of turns."""
    turns = _field(where, values, name)
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{where}: {name!r} holds no list of turns; expected at least one")
    here = f"{where}: {name}"
    return [text_value(here, _field(here, turn, "input_text"), "input_text").strip() for turn in turns]


def split_off_500(examples: Sequence[GenerationExample], options: DataOptions) -> Splits:
    """Return train and, with ``split: 500-instances``, a random validation split of 500 questions.

    Chen et al. 2022, section 5.1. Other questions of the same conversations stay in train.
    """
    if options.split != INSTANCES:
        return {"train": examples}
    if len(examples) <= _VALIDATION:
        raise DataError(
            f"coqa: split={INSTANCES!r} takes {_VALIDATION} questions from train, which has {len(examples)}"
        )
    order = sorted(examples, key=lambda example: digest(options.split_seed, example.id))
    chosen = {example.id for example in order[:_VALIDATION]}
    splits: dict[str, list[GenerationExample]] = {"train": [], "validation": []}
    for example in examples:
        splits["validation" if example.id in chosen else "train"].append(example)
    return splits


def from_rows(_: str, rows: Iterable[UsableRow]) -> list[GenerationExample]:
    """Return one example per question of the conversations on the hub."""
    return [
        example
        for number, (where, row) in enumerate(rows)
        for example in _examples(
            where, str(number), row["source"], row["story"], row["questions"], [row["answers"]["input_text"]]
        )
    ]
