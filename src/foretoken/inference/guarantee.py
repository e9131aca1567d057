"""What is guaranteed of answers, fitted on labelled documents: those of validation, or of a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow.parquet as pq
from pyarrow import ArrowException

from foretoken.data.problems import Answer, names_of_problems
from foretoken.errors import AdapterError, ConfigError
from foretoken.metrics.risk import Abstention, fit_abstention, fit_intervals, fit_label_sets, fit_sets, in_set
from foretoken.metrics.scaling import Scaling
from foretoken.training.problems import Problem
from foretoken.training.problems.base import Outputs
from foretoken.training.run_folder import PREDICTIONS, RECORD, SAVED, VALIDATION
from foretoken.training.saved_folder import adapter_folder

ABSTAIN, SETS = "abstain", "sets"
Kind: TypeAlias = Literal["abstain", "sets"]
Additions: TypeAlias = list[dict[str, Any]]  # to the answers, one a document
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Limit:
    """What is asked for.

    Attributes:
        max_error: the share of wrong answers, of sets or intervals without the right one, or of missed labels.
        confidence: the probability that the share of wrong answers is kept; None for 0.95.
        answer: one class or an abstention, or a set of classes; None for what the problem has.
    """

    max_error: float
    confidence: float | None = None
    answer: Kind | None = None


class Guarantee(Protocol):
    """What was fitted."""

    @property
    def says(self) -> str:
        """What is guaranteed, in words."""

    def additions(self, outputs: Outputs) -> Additions:
        """Return what each answer says besides what it says without the guarantee."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Documents whose labels are known, and what was predicted for them.

    Attributes:
        problem: what is predicted, with the decision of the answers.
        outputs: of the problem, scaled as the answers are.
        labels: of the problem.
    """

    problem: Problem
    outputs: Outputs
    labels: Outputs

    def guarantee(self, limit: Limit) -> Guarantee:
        """Return what keeps a limit.

        Raises:
            ConfigError: the problem has no such guarantee.
            DataError: the documents are too few for it, or too many of the answers are wrong.
        """
        return _FITS[self.problem.facts.answer][kind_of(self.problem, limit)](self, limit)


def kind_of(problem: Problem, limit: Limit) -> str:
    """Return how the answers keep a limit.

    Raises:
        ConfigError: those of the problem do not.
    """
    fits = _FITS.get(problem.facts.answer)
    if fits is None:
        raise ConfigError(
            f"max_error: got {problem.name}, expected {', '.join(names_of_problems(*_FITS))}; leave it out"
        )
    kind = next(iter(fits)) if limit.answer is None else limit.answer
    if kind not in fits:
        raise ConfigError(f"answer: got {kind} for {problem.name}, expected {' or '.join(fits)}")
    if kind == SETS and limit.confidence is not None:
        raise ConfigError(
            "confidence: it is of answers with abstentions, and sets and intervals have none; leave it out"
        )
    return kind


@dataclass(frozen=True)
class Abstains:
    """Only answers that are sure enough are given."""

    problem: Problem
    fitted: Abstention

    @property
    def says(self) -> str:
        """The limit, its confidence, and what it costs."""
        it = self.fitted
        return (
            f"at most {it.max_error:.3g} of the answers are wrong, with confidence {it.confidence:.3g}; of "
            f"{it.documents:,} labelled documents {it.answered:,} are answered, {it.errors:,} of them wrongly"
        )

    def additions(self, outputs: Outputs) -> Additions:
        """Return whether the document is answered, and no label where it is not."""
        answered = self.fitted.answers(confidences_of(self.problem, outputs))
        return [{"abstained": False} if is_answered else {"label": None, "abstained": True} for is_answered in answered]


@dataclass(frozen=True)
class Sets:
    """Every answer has the set of classes or labels that reach a probability."""

    problem: Problem
    threshold: float
    says: str

    def additions(self, outputs: Outputs) -> Additions:
        """Return the sets, the likeliest first."""
        scores = np.asarray(outputs)
        held = (
            scores >= self.threshold if self.problem.facts.answer is Answer.LABELS else in_set(scores, self.threshold)
        )
        return [{"set": self._names(row, kept)} for row, kept in zip(scores, held, strict=True)]

    def _names(self, row: np.ndarray, kept: np.ndarray) -> list[str]:
        return [self.problem.labels[number] for number in np.argsort(-row, kind="stable") if kept[number]]


@dataclass(frozen=True)
class Intervals:
    """Every number has an interval; with several targets, each has its own."""

    problem: Problem
    widths: np.ndarray
    says: str

    def additions(self, outputs: Outputs) -> Additions:
        """Return lower and upper end, by the names of several targets."""
        values = np.asarray(outputs, dtype=np.float64).reshape(len(outputs), -1)
        ends = np.stack([values - self.widths, values + self.widths], axis=-1).round(6).tolist()
        names = self.problem.labels
        return [{"interval": dict(zip(names, row, strict=True)) if names else row[0]} for row in ends]


def confidences_of(problem: Problem, outputs: Outputs) -> np.ndarray:
    """Return the probabilities (n,) of the classes that are answered."""
    scores = np.asarray(outputs)
    return np.take_along_axis(scores, problem.decided(scores)[:, None], axis=1)[:, 0]


def _abstention(evidence: Evidence, limit: Limit) -> Guarantee:
    problem, confidence = evidence.problem, CONFIDENCE if limit.confidence is None else limit.confidence
    wrong = problem.decided(evidence.outputs) != np.asarray(evidence.labels)
    sure = confidences_of(problem, evidence.outputs)
    return Abstains(problem, fit_abstention(sure, wrong, max_error=limit.max_error, confidence=confidence))


def _class_sets(evidence: Evidence, limit: Limit) -> Guarantee:
    right = np.take_along_axis(np.asarray(evidence.outputs), np.asarray(evidence.labels)[:, None], axis=1)[:, 0]
    says = f"at most {limit.max_error:.3g} of the sets lack the right class"
    return Sets(evidence.problem, fit_sets(right, max_error=limit.max_error), says)


def _label_sets(evidence: Evidence, limit: Limit) -> Guarantee:
    threshold = fit_label_sets(evidence.outputs, evidence.labels, max_error=limit.max_error)
    return Sets(evidence.problem, threshold, f"sets miss at most {limit.max_error:.3g} of a document's labels")


def _intervals(evidence: Evidence, limit: Limit) -> Guarantee:
    residuals = np.asarray(evidence.labels, dtype=np.float64) - np.asarray(evidence.outputs, dtype=np.float64)
    says = f"at most {limit.max_error:.3g} of the intervals lack the right number"
    return Intervals(evidence.problem, np.atleast_1d(fit_intervals(residuals, max_error=limit.max_error)), says)


_FITS: Mapping[Answer, Mapping[str, Any]] = {
    Answer.CLASS: {ABSTAIN: _abstention, SETS: _class_sets},
    Answer.LABELS: {SETS: _label_sets},
    Answer.NUMBER: {SETS: _intervals},
}


def validation_of(folder: Path, problem: Problem, scaling: Scaling | None) -> Evidence | None:
    """Return the validation documents of a run or of what it saved; None where there are none.

    Args:
        folder: of the run, or of what it saved.
        problem: with the decision of the answers.
        scaling: of the probabilities, where the answers have it.

    Raises:
        AdapterError: their file is damaged, or of another run.
    """
    file = _validation_file(folder)
    if file is None or problem.facts.answer not in _FITS:
        return None
    try:
        table = pq.read_table(file, filters=[("split", "=", "validation")])
        outputs, labels = problem.from_columns(table.to_pydict())
    except (ArrowException, OSError, KeyError, ValueError) as error:
        raise AdapterError(f"{file} is damaged or of another run: {error}"[:300]) from error
    if not len(table):
        return None
    return Evidence(problem, outputs if scaling is None else scaling.apply(outputs), labels)


def _validation_file(folder: Path) -> Path | None:
    """Return where the predictions are: beside the model, or in the run's folder, where older runs have them."""
    place = adapter_folder(folder)
    is_in_run = place.name in SAVED and (place.parent / RECORD).is_file()
    known = [place / VALIDATION, *([place.parent / PREDICTIONS] if is_in_run else [])]
    return next((file for file in known if file.is_file()), None)
