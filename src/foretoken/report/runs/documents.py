"""The score of a method on each test document, as a mean over its seeds, for the paired bootstrap.

It is the mean and no vote: a vote of seeds would be an ensemble, which is no row of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foretoken.data.problems import Answer
from foretoken.errors import DataError, printable
from foretoken.metrics.answers import token_f1
from foretoken.report.runs.groups import TEST, RunGroup
from foretoken.report.runs.records import Run

Key = tuple[str, str]  # part of the test split, id of the document


class Measure(NamedTuple):
    """A measure of one document, of which greater values are better, and its name in the report."""

    name: str
    of: Callable[[Any, Any], float]


def _same(label: Any, prediction: Any) -> float:
    return float(label == prediction)


def _minus_squared_error(label: Any, prediction: Any) -> float:
    return -float(np.mean(np.square(np.subtract(label, prediction, dtype=np.float64))))  # of one target or several


def _tags_right(label: Sequence[str], prediction: Sequence[str]) -> float:
    return float(np.mean([tag == other for tag, other in zip(label, prediction, strict=True)])) if label else 1.0


def _labels_right(label: Sequence[str], prediction: Sequence[str]) -> float:
    there = len(label) + len(prediction)
    return 2 * len(set(label) & set(prediction)) / there if there else 1.0


def _words_right(references: Sequence[str], prediction: str) -> float:
    return max(token_f1(prediction, reference) for reference in references or [""])  # a question may have no answer


MEASURES: dict[Answer | None, Measure] = {
    **dict.fromkeys((Answer.CLASS, Answer.CHOICE), Measure("share of documents right", _same)),
    Answer.LABELS: Measure("F1 of the labels of a document", _labels_right),
    Answer.NUMBER: Measure("minus the squared error", _minus_squared_error),
    Answer.TAGS: Measure("share of tags right in a document", _tags_right),
    Answer.TEXT: Measure("F1 of the words of a text", _words_right),
    Answer.SPAN: Measure("F1 of the words of an answer", _words_right),
}


def per_document(group: RunGroup) -> dict[Key, float] | str:
    """Return the measure of every test document, averaged over seeds; or the reason why there is none."""
    measure = MEASURES.get(group.first.answer)
    if measure is None:
        return f"no measure per document is defined for {group.first.problem}"
    try:
        by_seed = [_scores(run, measure) for run in group.runs if run.scores(TEST)]
    except DataError as error:
        return str(error)
    if not by_seed:
        return f"the test split was not looked at with {group.label}"
    if any(scores.keys() != by_seed[0].keys() for scores in by_seed):
        return f"the seeds of {group.label} have different test documents"
    return {key: float(np.mean([scores[key] for scores in by_seed])) for key in by_seed[0]}


def paired(first: Mapping[Key, float], second: Mapping[Key, float]) -> tuple[list[float], list[float]]:
    """Return the values of both in the same order.

    Raises:
        DataError: their documents differ.
    """
    if first.keys() != second.keys():
        shared = len(first.keys() & second.keys())
        raise DataError(f"the test documents differ ({len(first)} and {len(second)}, {shared} in both)")
    return [first[key] for key in first], [second[key] for key in first]


def answers(table: pa.Table) -> dict[Key, tuple[Any, Any]]:
    """Return label and prediction of every test document.

    Raises:
        DataError: a column is missing, or a document is there twice.
    """
    missing = [name for name in ("split", "id", "label", "prediction") if name not in table.column_names]
    if missing:
        raise DataError(f"the predictions have no column {', '.join(missing)}")
    rows = table.filter(pc.equal(table["split"], TEST))
    parts = rows["part"].to_pylist() if "part" in rows.column_names else [None] * len(rows)
    keys = [(part or "", str(name)) for part, name in zip(parts, rows["id"].to_pylist(), strict=True)]
    if len(set(keys)) < len(keys):
        raise DataError("a test document is in the predictions twice")
    pairs = zip(rows["label"].to_pylist(), rows["prediction"].to_pylist(), strict=True)
    return dict(zip(keys, pairs, strict=True))


def _scores(run: Run, measure: Measure) -> dict[Key, float]:
    try:
        return {key: measure.of(label, prediction) for key, (label, prediction) in answers(run.predictions()).items()}
    except (TypeError, ValueError) as error:
        reason = error if isinstance(error, DataError) else f"the predictions are not of this kind of task ({error})"
        raise DataError(f"{printable(run.folder.name)}: {reason}") from error
