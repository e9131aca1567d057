"""How right a method is on each test document, as a mean over its seeds: what the paired bootstrap resamples.

The mean is taken, not a vote: a vote of seeds is an ensemble, which no row of the report describes.
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

Key = tuple[str, str]  # part of the test split, id of the document


class Measure(NamedTuple):
    """What is measured of one document, greater being better, and what the report calls it."""

    name: str
    of: Callable[[Any, Any], float]


def _same(label: Any, prediction: Any) -> float:
    return float(label == prediction)


def _minus_squared_error(label: Any, prediction: Any) -> float:
    return -float(np.mean(np.square(np.subtract(label, prediction, dtype=np.float64))))  # of one target or several


def _tags_right(label: Sequence[str], prediction: Sequence[str]) -> float:
    return float(np.mean([one == other for one, other in zip(label, prediction, strict=True)])) if label else 1.0


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
    """Return the measure of every test document, averaged over seeds; or, in words, why there is none."""
    measure = MEASURES.get(group.first.answer)
    if measure is None:
        return f"no measure per document is defined for {group.first.problem}"
    found: list[dict[Key, float]] = []
    for run in group.runs:
        if not run.scores(TEST):
            continue
        try:
            scores = _scores(run.predictions(), measure)
        except DataError as error:
            return f"{printable(run.folder.name)}: {error}"
        if isinstance(scores, str):
            return f"{printable(run.folder.name)}: {scores}"
        found.append(scores)
    if not found:
        return f"the test split was not looked at with {group.label}"
    if any(scores.keys() != found[0].keys() for scores in found):
        return f"the seeds of {group.label} have different test documents"
    return {key: float(np.mean([scores[key] for scores in found])) for key in found[0]}


def paired(one: Mapping[Key, float], other: Mapping[Key, float]) -> tuple[list[float], list[float]] | str:
    """Return the values of both in the same order; or why they are no pairs."""
    if one.keys() != other.keys():
        return f"the test documents differ ({len(one)} and {len(other)}, {len(one.keys() & other.keys())} in both)"
    return [one[key] for key in one], [other[key] for key in one]


def answers(table: pa.Table) -> dict[Key, tuple[Any, Any]] | str:
    """Return label and prediction of every test document; or, in words, why there are none."""
    missing = [name for name in ("split", "id", "label", "prediction") if name not in table.column_names]
    if missing:
        return f"the predictions have no column {', '.join(missing)}"
    rows = table.filter(pc.equal(table["split"], TEST))
    parts = rows["part"].to_pylist() if "part" in rows.column_names else [None] * len(rows)
    keys = [(part or "", str(name)) for part, name in zip(parts, rows["id"].to_pylist(), strict=True)]
    if len(set(keys)) < len(keys):
        return "a test document is in the predictions twice"
    pairs = zip(rows["label"].to_pylist(), rows["prediction"].to_pylist(), strict=True)
    return dict(zip(keys, pairs, strict=True))


def _scores(table: pa.Table, measure: Measure) -> dict[Key, float] | str:
    found = answers(table)
    if isinstance(found, str):
        return found
    try:
        return {key: measure.of(label, prediction) for key, (label, prediction) in found.items()}
    except (TypeError, ValueError) as error:
        return f"the predictions are not of this kind of task ({error})"
