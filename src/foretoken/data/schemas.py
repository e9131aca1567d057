"""From examples to tables: the columns that each kind of problem has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foretoken.data.documents import Document
from foretoken.data.examples import (
    CandidateExample,
    ChoiceExample,
    GenerationExample,
    QuestionExample,
    TaggedExample,
)
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    GENERATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)

if TYPE_CHECKING:
    import datasets

_Columns = dict[str, list[object]]
SHARED = ("id", "part", "group")  # columns that any problem may have


def table(problem: str, examples: Sequence[Any], names: Sequence[str]) -> datasets.Dataset:
    """Return the examples of a split as a table.

    Its columns are ``id``, ``part`` and ``group`` where any example has one, and those of the problem:
    classification, regression: text, text_pair (where there are any), label (ClassLabel or float);
    multiple-choice: text, choices, label; token-classification: words, labels; candidates: question, candidates,
    supports, label; generation: source, references; question-answering:
    question, context, answers (first character and the one after the last), mentions (where there are any).
    """
    import datasets

    columns = _common(examples) | _COLUMNS[problem](examples, names)
    features = datasets.Features(
        {"id": datasets.Value("string")}
        | {name: datasets.Value("string") for name in ("part", "group", "text_pair") if name in columns}
        | ({"mentions": datasets.List(datasets.List(datasets.Value("int64")))} if "mentions" in columns else {})
        | _features(problem, names)
    )
    return datasets.Dataset.from_dict(columns, features=features)


def _common(examples: Sequence[Any]) -> _Columns:
    columns = {"id": [example.id for example in examples]}
    for name in SHARED[1:]:
        values = [getattr(example, name) for example in examples]
        if any(value is not None for value in values):
            columns[name] = values
    return columns


def _classified(examples: Sequence[Document], names: Sequence[str]) -> _Columns:
    number = {name: index for index, name in enumerate(names)}
    return _texts(examples) | {"label": [number[str(example.label)] for example in examples]}


def _valued(examples: Sequence[Document], _: Sequence[str]) -> _Columns:
    return _texts(examples) | {"label": [example.value for example in examples]}


def _texts(examples: Sequence[Document]) -> _Columns:
    columns: _Columns = {"text": [example.text for example in examples]}
    if any(example.text_pair is not None for example in examples):
        columns["text_pair"] = [example.text_pair for example in examples]
    return columns


def _chosen(examples: Sequence[ChoiceExample], _: Sequence[str]) -> _Columns:
    return {
        "text": [example.text for example in examples],
        "choices": [list(example.choices) for example in examples],
        "label": [example.answer for example in examples],
    }


def _tagged(examples: Sequence[TaggedExample], names: Sequence[str]) -> _Columns:
    number = {name: index for index, name in enumerate(names)}
    return {
        "words": [list(example.words) for example in examples],
        "labels": [[number[tag] for tag in example.tags] for example in examples],
    }


def _candidates(examples: Sequence[CandidateExample], _: Sequence[str]) -> _Columns:
    return {
        "question": [example.question for example in examples],
        "candidates": [list(example.candidates) for example in examples],
        "supports": [list(example.supports) for example in examples],
        "label": [example.answer for example in examples],
    }


def _generated(examples: Sequence[GenerationExample], _: Sequence[str]) -> _Columns:
    return {
        "source": [example.source for example in examples],
        "references": [list(example.references) for example in examples],
    }


def _asked(examples: Sequence[QuestionExample], _: Sequence[str]) -> _Columns:
    columns: _Columns = {
        "question": [example.question for example in examples],
        "context": [example.context for example in examples],
        "answers": [[list(answer) for answer in example.answers] for example in examples],
    }
    if any(example.mentions is not None for example in examples):
        columns["mentions"] = [[list(mention) for mention in example.mentions or ()] for example in examples]
    return columns


_COLUMNS: dict[str, Callable[[Sequence[Any], Sequence[str]], _Columns]] = {
    CLASSIFICATION: _classified,
    REGRESSION: _valued,
    MULTIPLE_CHOICE: _chosen,
    TOKEN_CLASSIFICATION: _tagged,
    CANDIDATES: _candidates,
    GENERATION: _generated,
    QUESTION_ANSWERING: _asked,
}


def _features(problem: str, names: Sequence[str]) -> dict[str, object]:
    import datasets

    text, number, whole = datasets.Value("string"), datasets.Value("float64"), datasets.Value("int64")
    texts = datasets.List(text)
    return {
        CLASSIFICATION: lambda: {"text": text, "label": datasets.ClassLabel(names=list(names))},
        REGRESSION: lambda: {"text": text, "label": number},
        MULTIPLE_CHOICE: lambda: {"text": text, "choices": texts, "label": whole},
        TOKEN_CLASSIFICATION: lambda: {
            "words": texts,
            "labels": datasets.List(datasets.ClassLabel(names=list(names))),
        },
        CANDIDATES: lambda: {"question": text, "candidates": texts, "supports": texts, "label": whole},
        GENERATION: lambda: {"source": text, "references": texts},
        QUESTION_ANSWERING: lambda: {"question": text, "context": text, "answers": datasets.List(datasets.List(whole))},
    }[problem]()
