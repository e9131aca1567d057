"""The user's own data, of every problem: tables of one row per example, and files of the problem's own format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretoken.data.columns import Columns
from foretoken.data.documents import Document, refuse_empty
from foretoken.data.examples import Generation, Tagged
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    GENERATION,
    MULTIPLE_CHOICE,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.data.readers.conll import begins_document, fields_of, word_of
from foretoken.data.readers.files import read_text
from foretoken.data.readers.own_choices import choices_from_rows
from foretoken.data.readers.rows import Row, documents_from_rows
from foretoken.data.readers.tables import READERS, read_file, read_rows
from foretoken.errors import ConfigError, DataError

_Table = Callable[["Path | str", Iterable[Row], Columns], "list[Any]"]
_File = Callable[[Path, Columns], "list[Any]"]


def examples_from_rows(source: Path | str, rows: Iterable[Row], columns: Columns) -> list[Any]:
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


def read_examples(path: Path, columns: Columns) -> list[Any]:
    """Return the labelled examples of one file.

    Raises:
        DataError: the file, a row or a value is not usable; the message names file and line.
    """
    if columns.problem in _FILES:
        return _FILES[columns.problem](path, columns)
    return examples_from_rows(path, read_rows(path, columns.needed), columns)


def read_inputs(path: Path, columns: Columns) -> list[Any]:
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


# The modules of these formats hold tasks too, and tasks are read by way of this module: so they are imported late.


def _tagged(path: Path, _: Columns) -> list[Any]:
    from foretoken.data.tasks.ner import read_tagged

    return list(read_tagged(path))


def _candidates(path: Path, columns: Columns) -> list[Any]:
    from foretoken.data.tasks.qangaroo import read_candidates

    return read_candidates(path, labelled=columns.label is not None)


def _generation(path: Path, columns: Columns) -> list[Any]:
    from foretoken.data.readers.generation_files import read_generation

    return list(read_generation(path, columns.text, str(columns.label)))


def _documents(path: Path, columns: Columns) -> list[Any]:
    if path.suffix.lower() == ".txt":
        documents = read_file(path, columns.text, None)
        refuse_empty(documents)
        return documents
    return documents_from_rows(path, read_rows(path, columns.needed), columns)


def _sources(path: Path, columns: Columns) -> list[Any]:
    documents: list[Document] = _documents(path, columns)
    return [Generation(document.id, document.text, (), document.where) for document in documents]


def _words(path: Path, _: Columns) -> list[Any]:
    """Return sentences of one word per line, with a blank line between them; whatever follows a word is not read."""
    sentences: list[Tagged] = []
    words: list[str] = []
    first = 1
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        fields = fields_of(line)
        if fields and not begins_document(fields):
            words.append(word_of(f"{path}:{number}", fields))
            continue
        if words:
            sentences.append(Tagged(str(len(sentences)), tuple(words), ("O",) * len(words), f"{path}:{first}"))
        words, first = [], number + 1
    if not sentences:
        raise DataError(f"{path}: no words; expected one word per line, and a blank line after each sentence")
    return sentences


_TABLES: dict[str, _Table] = {
    CLASSIFICATION: documents_from_rows,
    REGRESSION: documents_from_rows,
    MULTIPLE_CHOICE: choices_from_rows,
}
_FILES: dict[str, _File] = {
    TOKEN_CLASSIFICATION: _tagged,
    CANDIDATES: _candidates,
    GENERATION: _generation,
}
_INPUTS: dict[str, _File] = {
    CLASSIFICATION: _documents,
    REGRESSION: _documents,
    GENERATION: _sources,
    TOKEN_CLASSIFICATION: _words,
    CANDIDATES: _candidates,
}
