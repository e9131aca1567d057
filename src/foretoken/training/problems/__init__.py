"""PROBLEMS: the one table of the problems that a run can be about, by the name that its data give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from foretoken import left
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    GENERATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.errors import ConfigError
from foretoken.training.options import ChunkOptions
from foretoken.training.problems.base import Collator, Inputs, Problem
from foretoken.training.problems.candidates import CandidateChoice
from foretoken.training.problems.choice import MultipleChoice
from foretoken.training.problems.classification import Classification
from foretoken.training.problems.generation import TextGeneration
from foretoken.training.problems.multi_label import MultiLabel
from foretoken.training.problems.question_answering import QuestionAnswering
from foretoken.training.problems.regression import Regression
from foretoken.training.problems.tagging import TokenClassification

__all__ = ["PROBLEMS", "Classification", "Collator", "Inputs", "MultiLabel", "Problem", "make_problem"]

PROBLEMS: dict[str, type[Problem]] = {
    CLASSIFICATION: Classification,
    MULTI_LABEL: MultiLabel,
    REGRESSION: Regression,
    MULTIPLE_CHOICE: MultipleChoice,
    TOKEN_CLASSIFICATION: TokenClassification,
    CANDIDATES: CandidateChoice,
    GENERATION: TextGeneration,
    QUESTION_ANSWERING: QuestionAnswering,
}


def make_problem(
    name: str, labels: Sequence[str] = (), *, chunks: ChunkOptions | None = None, **options: Any
) -> Problem:
    """Return the problem of a run.

    Args:
        name: of the problem.
        labels: the classes or tags, or the names of several numbers; none for other problems.
        chunks: how its documents are read in chunks.
        options: fields of its class; what is None, or tells another problem nothing, is left out.

    Raises:
        ConfigError: a problem that left; chunks, where its documents are not read in chunks; options of another one.
    """
    if gone := left.gone(name, left.PROBLEMS):
        raise ConfigError(f"{name} {gone}")
    kind, given = PROBLEMS[name], {key: value for key, value in options.items() if value is not None}
    if chunks is not None and not kind.reads_chunks:
        raise ConfigError(_refused("chunks", [other for other, it in PROBLEMS.items() if it.reads_chunks], name))
    for key in [key for key in given if key not in _fields(kind)]:
        if key in _CHOSEN:
            raise ConfigError(_refused(_CHOSEN[key], [it for it in PROBLEMS if key in _fields(PROBLEMS[it])], name))
        del given[key]
    return kind(tuple(labels), **given)


def _fields(kind: type[Problem]) -> set[str]:
    return {field.name for field in fields(kind)}


def _refused(key: str, problems: Sequence[str], name: str) -> str:
    return f"{key} is for {' and '.join(problems)}, got data for {name}; leave it out"


_CHOSEN = {  # options that a recipe says and no other problem may ignore
    "generation": "generation",
    "question_answering": "question_answering",
    "rule": "decision",
    "decision": "decision",
}
