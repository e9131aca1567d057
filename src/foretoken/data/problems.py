"""The problems that data can pose, by name: how a row is read, and what kind of answer it has.

Readers and checks go by these two, and metrics by the answer, so that a further problem of known kinds needs none.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

CLASSIFICATION = "classification"
MULTI_LABEL = "multi-label-classification"
REGRESSION = "regression"
MULTIPLE_CHOICE = "multiple-choice"
TOKEN_CLASSIFICATION = "token-classification"
CANDIDATES = "candidates"
GENERATION = "generation"
QUESTION_ANSWERING = "question-answering"


class Rows(Enum):
    """What one row of the data is."""

    TEXTS = "a text or a pair of texts"
    CHOICES = "a question with its choices"
    WORDS = "words"
    CANDIDATES = "a question with candidate answers and documents"
    SOURCES = "a source text"
    QUESTIONS = "a question about a context"


class Answer(Enum):
    """What is answered for a row."""

    CLASS = "one class of a fixed set"
    LABELS = "any number of classes of a fixed set"
    NUMBER = "a number, or one for each of several targets"
    CHOICE = "one of what the row offers"
    TAGS = "a tag of a fixed set for every word"
    TEXT = "a text"
    SPAN = "a part of the context, or none"


class ProblemData(NamedTuple):
    """What is known of a problem before its data are read.

    Attributes:
        about: what is predicted.
        rows: what a row is.
        answer: what is answered.
        columns: of its tables, beside id, part and group; the answer's is called label, labels, references or answers.
        metric: what selects the best checkpoint, where neither task nor recipe names it.
        shown: the metrics that the command line prints.
    """

    about: str
    rows: Rows
    answer: Answer
    columns: tuple[str, ...]
    metric: str
    shown: tuple[str, ...]

    @property
    def has_classes(self) -> bool:
        """Whether a whole text or pair has one or several of a fixed set of classes."""
        return self.answer in (Answer.CLASS, Answer.LABELS)


_TEXTS = ("text", "text_pair")
PROBLEMS: dict[str, ProblemData] = {
    CLASSIFICATION: ProblemData(
        "one class per text, or per pair of texts",
        Rows.TEXTS,
        Answer.CLASS,
        (*_TEXTS, "label"),
        "f1_macro",
        ("accuracy", "f1_macro", "ece"),
    ),
    MULTI_LABEL: ProblemData(
        "any number of classes per text, or per pair of texts",
        Rows.TEXTS,
        Answer.LABELS,
        (*_TEXTS, "labels"),
        "f1_micro",
        ("f1_micro", "f1_macro", "map"),
    ),
    REGRESSION: ProblemData(
        "one number per text, or per pair of texts",
        Rows.TEXTS,
        Answer.NUMBER,
        (*_TEXTS, "label"),
        "pearson_spearman",
        ("pearson", "spearman", "mse"),
    ),
    MULTIPLE_CHOICE: ProblemData(
        "one of the choices that each question brings along",
        Rows.CHOICES,
        Answer.CHOICE,
        ("text", "choices", "label"),
        "accuracy",
        ("accuracy", "ece", "nll"),
    ),
    TOKEN_CLASSIFICATION: ProblemData(
        "one tag per word",
        Rows.WORDS,
        Answer.TAGS,
        ("words", "labels", "raw_text"),
        "f1",
        ("precision", "recall", "f1"),
    ),
    CANDIDATES: ProblemData(
        "one of the candidate answers to a question about several documents",
        Rows.CANDIDATES,
        Answer.CHOICE,
        ("question", "candidates", "supports", "label"),
        "accuracy",
        ("accuracy", "ece", "nll"),
    ),
    GENERATION: ProblemData(
        "a text",
        Rows.SOURCES,
        Answer.TEXT,
        ("source", "references"),
        "loss",
        ("bleu", "rougeL", "loss"),  # the others take long to measure at every evaluation
    ),
    QUESTION_ANSWERING: ProblemData(
        "the part of a context that answers a question, or that there is none",
        Rows.QUESTIONS,
        Answer.SPAN,
        ("question", "context", "answers", "mentions"),
        "token_f1",
        ("exact_match", "token_f1", "loss"),
    ),
}


def names_of_problems(*answers: Answer) -> tuple[str, ...]:
    """Return the names of the problems with one of these kinds of answers.

    >>> names_of_problems(Answer.CLASS, Answer.LABELS)
    ('classification', 'multi-label-classification')
    """
    return tuple(name for name, data in PROBLEMS.items() if data.answer in answers)
