"""PROBLEMS: the one table of the problems that a run can be about, by the name that its data give."""

from __future__ import annotations

from collections.abc import Sequence
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
from foretoken.metrics.decision import Decision
from foretoken.metrics.regression import TargetScale
from foretoken.training.options import ChunkOptions, DecisionOptions, GenerationOptions, QuestionOptions
from foretoken.training.problems.base import Collator, Inputs, Problem
from foretoken.training.problems.candidates import CandidateChoice
from foretoken.training.problems.choice import MultipleChoice
from foretoken.training.problems.classification import Classification, TextProblem
from foretoken.training.problems.generation import TextGeneration
from foretoken.training.problems.losses import LossOptions
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
    name: str,
    labels: Sequence[str],
    *,
    grouped: bool = False,
    n_bins: int = 15,
    pairs: bool = False,
    chunks: ChunkOptions | None = None,
    generation: GenerationOptions | None = None,
    question_answering: QuestionOptions | None = None,
    no_answer: bool = False,
    task: str | None = None,
    losses: LossOptions | None = None,
    rule: DecisionOptions | None = None,
    decision: Decision | None = None,
    targets: TargetScale | None = None,
) -> Problem:
    """Return the problem of a run; ``task`` names the built-in task that it is, if it is one.

    ``no_answer`` says that questions about contexts may have none there.

    Raises:
        ConfigError: a problem that left; chunks, where its documents are not read in chunks; options of another one.
    """
    if gone := left.gone(name, left.PROBLEMS):
        raise ConfigError(f"{name} {gone}")
    kind = PROBLEMS[name]
    given: dict[str, Any] = {"labels": tuple(labels), "grouped": grouped, "n_bins": n_bins, "pairs": pairs}
    if issubclass(kind, TextGeneration):
        given |= {"options": generation or GenerationOptions(), "task": task}
    elif generation is not None:
        raise ConfigError(f"generation is for data with texts to generate, got data for {name}; leave it out")
    if issubclass(kind, QuestionAnswering):
        given |= {"options": question_answering or QuestionOptions(), "no_answer": no_answer}
    elif question_answering is not None:
        raise ConfigError(f"question_answering is for questions about contexts, got data for {name}; leave it out")
    if issubclass(kind, Classification | MultiLabel):
        given |= {"losses": losses or LossOptions(), "rule": rule, "decision": decision}
    elif rule is not None or decision is not None:
        raise ConfigError(f"decision is for {CLASSIFICATION} and {MULTI_LABEL}, got data for {name}; leave it out")
    if issubclass(kind, Regression) and targets is not None:
        given |= {"targets": targets}
    if chunks is not None and not issubclass(kind, TextProblem | CandidateChoice):
        raise ConfigError(f"chunks is for classification, regression and candidates, got data for {name}; leave it out")
    return kind(**given)
