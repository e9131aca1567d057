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


def make_problem(name: str, labels: Sequence[str] = (), **options: Any) -> Problem:
    """Return the problem of a run.

    Args:
        name: of the problem.
        labels: the classes or tags, or the names of several numbers; none for other problems.
        options: fields of its class, and ``chunks``; what is None, or tells another problem nothing, is left out.

    Raises:
        ConfigError: a problem that left; chunks, where its documents are not read in chunks; options of another one.
    """
    if gone := left.gone(name, left.PROBLEMS):
        raise ConfigError(f"{name} {gone}")
    kind, chosen = PROBLEMS[name], {key: value for key, value in options.items() if value is not None}
    for key in _CHOSEN:
        if key in chosen and not _takes(kind, key):
            others = " and ".join(other for other, its in PROBLEMS.items() if _takes(its, key))
            option = key.replace("rule", "decision")
            raise ConfigError(f"{option} is for {others}, got data for {name}; leave it out")
    known = {field.name for field in fields(kind)}
    return kind(tuple(labels), **{key: value for key, value in chosen.items() if key in known})


_CHOSEN = ("chunks", "generation", "question_answering", "rule", "decision")  # which no problem may ignore


def _takes(kind: type[Problem], option: str) -> bool:
    return kind.reads_chunks if option == "chunks" else option in {field.name for field in fields(kind)}
