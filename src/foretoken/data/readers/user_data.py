"""The user's own data, of every problem: tables of one row per example, and files of the problem's own format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from foretoken.data.documents import Document, E, Example, refuse_empty, refuse_repeated_ids
from foretoken.data.examples import CandidateExample, ChoiceExample, GenerationExample
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    GENERATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.data.readers.conll import read_tagged, read_words
from foretoken.data.readers.files import local_path, read_text
from foretoken.data.readers.json_files import stream_objects
from foretoken.data.readers.questions import questions_from_rows, read_questions
from foretoken.data.readers.rows import (
    CHOICES,
    ColumnNames,
    Row,
    check_columns,
    documents_from_rows,
    filled,
    row_id,
    text_value,
)
from foretoken.data.readers.tables import READERS, read_rows
from foretoken.errors import ConfigError, DataError, did_you_mean

_Table = Callable[["Path | str", Iterable[Row], ColumnNames], Sequence[Example]]
_File = Callable[[Path, ColumnNames], Sequence[Example]]
_CANDIDATE_INPUTS = ("query", "candidates", "supports")
CANDIDATE_FIELDS = (*_CANDIDATE_INPUTS, "answer")


def examples_from_rows(source: Path | str, rows: Iterable[Row], columns: ColumnNames) -> Sequence[Example]:
    """Return the checked examples of a table.

    Raises:
        DataError: a value is missing or of the wrong kind; the message names file and line.
        ConfigError: the problem is none that a table of one row per example can pose.
    """
    if columns.problem not in _TABLES:
        raise ConfigError(
            f"{source}: such a table is read for {', '.join(_TABLES)}, and data.problem is {columns.problem}; "
            "name a file of that problem's format"
        )
    return _TABLES[columns.problem](source, rows, columns)


def read_examples(path: Path, columns: ColumnNames) -> Sequence[Example]:
    """Return the labelled examples of one file.

    Raises:
        DataError: the file, a row or a value is not usable; the message names file and line.
    """
    if columns.problem in _FILES:
        return _FILES[columns.problem](path, columns)
    return examples_from_rows(path, read_rows(path, columns.needed), columns)


def read_inputs(path: Path, columns: ColumnNames) -> Sequence[Example]:
    """Return the examples of one file that are yet to be predicted; labels in it are not looked at.

    Raises:
        DataError: as for :func:`read_examples`.
    """
    unlabelled = replace(columns, label=None)
    if columns.problem in _INPUTS:
        return _INPUTS[columns.problem](path, unlabelled)
    return examples_from_rows(path, read_rows(path, unlabelled.needed), unlabelled)


def file_suffixes(problem: str) -> tuple[str, ...] | None:
    """Return the endings of files that hold a problem's examples; None: any."""
    return {TOKEN_CLASSIFICATION: None, CANDIDATES: (".json",)}.get(problem, tuple(READERS))


def read_generation(
    path: str | Path, source_column: str = "source", target_column: str = "target"
) -> list[GenerationExample]:
    r"""Return the source and target texts of one file; a target is a text, or a list of texts that are all right.

    Raises:
        DataError: the file, a row or a value is not usable; the message names file and line.

    >>> file = getfixture("tmp_path") / "mine.jsonl"
    >>> _ = file.write_text('{"source": "name[Aromi]", "target": ["Aromi is a pub.", "A pub is Aromi."]}\n')
    >>> read_generation(file)[0].references
    ('Aromi is a pub.', 'A pub is Aromi.')
    """
    path = local_path(path)
    if source_column == target_column:
        raise DataError(f"{path}: source and target are both column {source_column!r}; they must differ")
    examples = []
    for number, (where, values) in enumerate(read_rows(path, (source_column, target_column))):
        source = filled(where, values[source_column], source_column)
        targets = _targets(where, values[target_column], target_column)
        examples.append(GenerationExample(row_id(where, values, number), source, targets, where))
    return _checked(examples, f"{path}: has no rows; expected at least one source with its target")


def _targets(where: str, value: object, column: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        return (filled(where, value, column),)
    if not value:
        raise DataError(f"{where}: column {column!r} holds an empty list, expected at least one text")
    return tuple(filled(where, text, column) for text in value)


def read_candidates(path: str | Path, *, labelled: bool = True) -> list[CandidateExample]:
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
    return candidates_from_rows(path, stream_objects(path), labelled=labelled)


def candidates_from_rows(source: Path | str, rows: Iterable[Row], *, labelled: bool = True) -> list[CandidateExample]:
    """Return the questions of a table, as :func:`read_candidates` returns those of a file."""
    examples = [_candidates(number, row, labelled) for number, row in enumerate(rows)]
    return _checked(
        examples, f"{source}: has no questions; expected a list of objects with {', '.join(CANDIDATE_FIELDS)}"
    )


def _candidates(number: int, row: Row, labelled: bool) -> CandidateExample:
    where, values = row
    check_columns(where, values, CANDIDATE_FIELDS if labelled else _CANDIDATE_INPUTS)
    candidates = _texts(where, values, "candidates")
    answer = _right_candidate(where, values, candidates) if labelled else 0
    question = text_value(where, values["query"], "query")
    if not question.strip():
        raise DataError(f"{where}: the query is empty; expected a question")
    supports = _texts(where, values, "supports")
    return CandidateExample(row_id(where, values, number), question, candidates, supports, answer, where)


def _right_candidate(where: str, values: Mapping[str, object], candidates: tuple[str, ...]) -> int:
    answer = text_value(where, values["answer"], "answer")
    if answer not in candidates:
        raise DataError(
            f"{where}: the answer {answer!r} is not among the {len(candidates)} candidates"
            f"{did_you_mean(answer, candidates)}; it has to be one of them, letter by letter"
        )
    return candidates.index(answer)


def _texts(where: str, values: Mapping[str, object], name: str) -> tuple[str, ...]:
    found = values[name]
    if not isinstance(found, list) or not found:
        raise DataError(f"{where}: {name!r} holds {found!r}, expected a list of at least one text")
    return tuple(text_value(where, text, name) for text in found)


def _choices_from_rows(source: Path | str, rows: Iterable[Row], columns: ColumnNames) -> list[ChoiceExample]:
    """Return checked questions; the label is the number of the right choice, from 0, or its text."""
    examples = [_question(where, values, number, columns) for number, (where, values) in enumerate(rows)]
    return _checked(examples, f"{source}: has no questions; expected at least one row of data")


def _question(where: str, values: Mapping[str, object], number: int, columns: ColumnNames) -> ChoiceExample:
    text = text_value(where, values[columns.text], columns.text)
    if not text.strip():
        raise DataError(f"{where}: the question is empty; fill in column {columns.text!r} or remove the row")
    choices = _choices(where, values[CHOICES])
    answer = 0 if columns.label is None else _right_choice(where, values[columns.label], choices, columns.label)
    return ChoiceExample(row_id(where, values, number), text, choices, answer, where)


def _choices(where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        raise DataError(
            f"{where}: column {CHOICES!r} holds {value!r}, expected a list of at least two texts "
            "(jsonl, json and parquet files can hold lists)"
        )
    choices = tuple(text_value(where, choice, CHOICES) for choice in value)
    if not all(choice.strip() for choice in choices):
        raise DataError(f"{where}: column {CHOICES!r} holds an empty choice; every choice needs a text")
    return choices


def _right_choice(where: str, value: object, choices: tuple[str, ...], column: str) -> int:
    """Return the number of the right choice, which is given by its number from 0 or by its text."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return value
    if isinstance(value, str) and choices.count(value) == 1:
        return choices.index(value)
    raise DataError(
        f"{where}: column {column!r} holds {value!r}, expected the number of the right choice "
        f"(0 to {len(choices) - 1}) or its text, one of {', '.join(map(repr, choices))}"
    )


def _checked(examples: list[E], said_of_none: str) -> list[E]:
    if not examples:
        raise DataError(said_of_none)
    refuse_repeated_ids(examples)
    return examples


def _documents(path: Path, columns: ColumnNames) -> list[Document]:
    if path.suffix.lower() == ".txt":
        documents = [Document(path.stem, read_text(path), None, str(path))]
        refuse_empty(documents)
        return documents
    return documents_from_rows(path, read_rows(path, columns.needed), columns)


def _sources(path: Path, columns: ColumnNames) -> list[GenerationExample]:
    return [GenerationExample(one.id, one.text, (), one.where) for one in _documents(path, columns)]


_TABLES: dict[str, _Table] = {
    CLASSIFICATION: documents_from_rows,
    REGRESSION: documents_from_rows,
    MULTIPLE_CHOICE: _choices_from_rows,
    QUESTION_ANSWERING: questions_from_rows,
}
_FILES: dict[str, _File] = {
    TOKEN_CLASSIFICATION: lambda path, _: read_tagged(path),
    CANDIDATES: lambda path, _: read_candidates(path),
    GENERATION: lambda path, columns: read_generation(path, columns.text, str(columns.label)),
    QUESTION_ANSWERING: read_questions,
}
_INPUTS: dict[str, _File] = {
    CLASSIFICATION: _documents,
    REGRESSION: _documents,
    GENERATION: _sources,
    TOKEN_CLASSIFICATION: lambda path, _: read_words(path),
    CANDIDATES: lambda path, _: read_candidates(path, labelled=False),
    QUESTION_ANSWERING: read_questions,
}
