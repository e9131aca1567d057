"""From examples to tables: the columns that each kind of problem has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foretoken.data import problems

if TYPE_CHECKING:
    import datasets

SHARED = ("id", "part", "group")  # columns that any problem may have
_WHERE_ANY = (*SHARED[1:], "text_pair", "mentions")  # columns that a table has where any example has one
_COLUMNS: dict[str, tuple[str, ...]] = {
    problems.CLASSIFICATION: ("text", "text_pair", "label"),
    problems.MULTI_LABEL: ("text", "text_pair", "labels"),
    problems.REGRESSION: ("text", "text_pair", "label"),
    problems.MULTIPLE_CHOICE: ("text", "choices", "label"),
    problems.TOKEN_CLASSIFICATION: ("words", "labels"),
    problems.CANDIDATES: ("question", "candidates", "supports", "label"),
    problems.GENERATION: ("source", "references"),
    problems.QUESTION_ANSWERING: ("question", "context", "answers", "mentions"),
}
_LABELS = {problems.CLASSIFICATION: "label", problems.REGRESSION: "value"}  # of others it is the number of the answer


def table(problem: str, examples: Sequence[Any], names: Sequence[str]) -> datasets.Dataset:
    """Return the examples of a split as a table.

    Its columns are ``id``, ``part`` and ``group`` where any example has one, and those of the problem:
    classification, regression: text, text_pair (where there are any), label (ClassLabel or float; where regression has
    ``names``, a list of floats); with several labels: text, text_pair, labels;
    multiple-choice: text, choices, label; token-classification: words, labels; candidates: question, candidates,
    supports, label; generation: source, references; question-answering:
    question, context, answers (first character and the one after the last), mentions (where there are any).
    """
    import datasets

    tags = "tags" if problem == problems.TOKEN_CLASSIFICATION else "labels"
    attributes = {"labels": tags, "label": _LABELS.get(problem, "answer")}
    columns: dict[str, list[Any]] = {}
    for name in (*SHARED, *_COLUMNS[problem]):
        values = [getattr(example, attributes.get(name, name)) for example in examples]
        if name not in _WHERE_ANY or any(value is not None for value in values):
            columns[name] = values
    types = _types(problem, names)
    features = {name: types.get(name, datasets.Value("string")) for name in columns}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _types(problem: str, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the types of the columns that hold something else than a text."""
    import datasets

    classes, whole = datasets.ClassLabel(names=list(names)), datasets.Value("int64")
    number = datasets.Value("float64")
    labels = {problems.CLASSIFICATION: classes, problems.REGRESSION: datasets.List(number) if names else number}
    texts = dict.fromkeys(
        ("choices", "words", "candidates", "supports", "references"), datasets.List(datasets.Value("string"))
    )
    spans = dict.fromkeys(("answers", "mentions"), datasets.List(datasets.List(whole)))
    return texts | spans | {"label": labels.get(problem, whole), "labels": datasets.List(classes)}
