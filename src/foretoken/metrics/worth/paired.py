"""Two systems on the same rows: their scores in a metric, how sure these are, and how sure the difference is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretoken.metrics.statistics import CONFIDENCE, row_counts
from foretoken.metrics.table import METRICS
from foretoken.options import is_number, is_usable

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Numbers: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Score: TypeAlias = Callable[[Counts], Numbers]  # how often each row is drawn (S, n) -> scores (S,)

SAMPLES = 1000
FEWEST = 6  # rows on which two systems differ: of fewer, no two-sided sign test has p < 0.05
_CLASSES, _SETS, _NUMBERS = "classification", "multi-label-classification", "regression"
_RATIOS = ("precision", "recall", "f1")
_AVERAGES = [f"{ratio}_{average}" for ratio in _RATIOS for average in ("micro", "macro")]
_KNOWN = {  # the first one stands in for metrics that answers alone do not give
    _CLASSES: ["f1_macro", "accuracy", *_AVERAGES, *_RATIOS, "accuracy_f1", "matthews"],
    _SETS: ["f1_micro", *_AVERAGES],
    _NUMBERS: ["pearson_spearman", "pearson", "spearman", "mse"],
}


@dataclass(frozen=True)
class Versus:
    """One system, which may be the mean of several seeds, against another, with 95 % intervals over other rows.

    Attributes:
        metric: what they are compared by.
        score: of the one, from `lower` to `upper`.
        other: score of the other, from `other_lower` to `other_upper`.
        gain: by how much the one is better; of errors, by how much it is lower.
        gain_lower: end of its interval.
        gain_upper: the other end.
        p_value: of the paired bootstrap, two-sided.
        rows: on which both were measured.
        differing: those of them that the two do not answer alike.
    """

    metric: str
    score: float
    lower: float
    upper: float
    other: float
    other_lower: float
    other_upper: float
    gain: float
    gain_lower: float
    gain_upper: float
    p_value: float
    rows: int
    differing: int

    @property
    def side(self) -> int:
        """1 where the one is better, -1 where the other is, 0 where the rows do not separate them."""
        if self.differing < FEWEST or self.gain_lower <= 0 <= self.gain_upper:
            return 0
        return 1 if self.gain > 0 else -1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, values: object) -> Versus | None:
        """Return what :meth:`to_dict` wrote; None for anything else."""
        names = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping) or set(values) != set(names) or values["metric"] not in METRICS:
            return None
        numbers = [values[name] for name in names[1:]]
        return cls(**values) if all(is_number(value) and is_usable(value) for value in numbers) else None


def comparable(problem: str, metric: str, classes: int) -> str | None:
    """Return the metric that answers are compared by: the one asked for, or the problem's where that needs more.

    None: a problem whose answers are not compared.

    >>> comparable("classification", "accuracy", 3), comparable("classification", "nll", 3)
    ('accuracy', 'f1_macro')
    """
    known = _KNOWN.get(problem, [])
    of_two = classes == 2 or metric not in (*_RATIOS, "accuracy_f1")
    return metric if metric in known and of_two else next(iter(known), None)


def versus(
    problem: str,
    metric: str,
    labels: Sequence[Any],
    one: Sequence[Sequence[Any]],
    other: Sequence[Sequence[Any]],
    *,
    classes: Sequence[str] = (),
    samples: int = SAMPLES,
    seed: int = 0,
) -> Versus | None:
    """Compare the answers of one system to n rows with those of another, each given for one seed or several.

    Rows are drawn with replacement, the same ones for both (Koehn 2004). An interval is of the 2.5 % and 97.5 %
    quantiles of what they score, and p is how often a difference that is centred on none is as large, the sample
    itself counted as one more draw (Berg-Kirkpatrick et al. 2012).

    Args:
        problem: classification, multi-label-classification or regression.
        metric: what they are compared by; one that answers do not give is replaced, see :func:`comparable`.
        labels: a name, a set of names, or a number or numbers per row.
        one: answers like the labels, of each seed.
        other: those of the other system.
        classes: the names, in order; those of the rows by default.
        samples: how often rows are drawn.
        seed: of the draws.

    Returns:
        None for other problems, fewer than two rows, and a metric that is not defined on the rows.

    >>> labels = ["a", "b"] * 20
    >>> found = versus("classification", "accuracy", labels, [labels], [["a"] * 40])
    >>> found.score, found.other, found.side
    (1.0, 0.5, 1)
    """
    names = list(classes) or _names(problem, [labels, *one, *other])
    metric = comparable(problem, metric, len(names)) or ""
    if not metric or len(labels) < 2:
        return None
    systems = [[_score(problem, metric, labels, answers, names) for answers in system] for system in (one, other)]
    counts = row_counts(len(labels), samples, np.random.default_rng(seed))
    parts = [
        [np.mean([score(drawn) for score in system], axis=0) for system in systems]
        for drawn in chain([np.ones((1, len(labels)), dtype=np.int64)], counts)
    ]
    values = np.concatenate(parts, axis=1)
    if not np.isfinite(values[:, 0]).all():
        return None
    (first, *scores), (second, *others) = values[:, np.isfinite(values).all(axis=0)]
    if not scores:
        return None
    sign = 1 if METRICS[metric].greater_is_better else -1
    gain, gains = sign * float(first - second), sign * (np.array(scores) - others)
    extreme = np.abs(gains - gain) >= abs(gain) - 1e-12
    return Versus(
        metric,
        float(first),
        *_interval(scores),
        float(second),
        *_interval(others),
        gain,
        *_interval(gains),
        float((1 + extreme.sum()) / (1 + len(gains))),
        len(labels),
        sum(any(answer != row[0] for answer in row) for row in zip(*one, *other, strict=True)),
    )


def _names(problem: str, answers: Sequence[Sequence[Any]]) -> list[str]:
    if problem == _NUMBERS:
        return []
    rows = [row for system in answers for row in system]
    return sorted({name for row in rows for name in row} if problem == _SETS else set(rows))


def _interval(values: Sequence[float] | Numbers) -> tuple[float, float]:
    tails = (1 - CONFIDENCE) / 2
    lower, upper = np.quantile(values, [tails, 1 - tails])
    return float(lower), float(upper)


def _score(problem: str, metric: str, labels: Sequence[Any], answers: Sequence[Any], names: Sequence[str]) -> Score:
    if problem == _NUMBERS:
        return _of_numbers(metric, np.asarray(labels, dtype=np.float64), np.asarray(answers, dtype=np.float64))
    return _of_names(metric, labels, answers, names, several=problem == _SETS)


def _of_names(
    metric: str, labels: Sequence[Any], answers: Sequence[Any], names: Sequence[str], *, several: bool
) -> Score:
    """Return the score of rows drawn anew: what it needs are, of each name, hits, rows with it and answers of it."""
    right, answered = (_held(rows, names, several=several) for rows in (labels, answers))
    sums = [right * answered, right, answered]

    def score(counts: Counts) -> Numbers:
        hits, there, said = (np.asarray(counts @ matrix, dtype=np.float64) for matrix in sums)
        if metric == "accuracy_f1":
            return (_ratio("accuracy", hits, there, said) + _ratio("f1", hits, there, said)) / 2
        return _ratio(metric, hits, there, said, every=several)

    return score


def _held(rows: Sequence[Any], names: Sequence[str], *, several: bool) -> csr_array:
    """Return 1 where a row has a name, else 0 (n, C)."""
    from scipy.sparse import csr_array

    places = {name: place for place, name in enumerate(names)}
    held = [[places[name] for name in (row if several else [row])] for row in rows]
    ends = np.cumsum([0, *map(len, held)])
    columns = np.fromiter(chain.from_iterable(held), dtype=np.int64, count=ends[-1])
    return csr_array((np.ones(len(columns), dtype=np.int64), columns, ends), shape=(len(rows), len(names)))


def _ratio(metric: str, hits: Numbers, there: Numbers, said: Numbers, *, every: bool = False) -> Numbers:
    """Return a metric (S,) from sums over rows (S, C), as scikit-learn defines it: a ratio without cases is 0.

    Macro averages are over the names that occur in labels or answers, or over ``every`` one.
    """
    total = there.sum(axis=1)
    if metric == "accuracy":
        return hits.sum(axis=1) / total
    if metric == "matthews":
        spread = np.sqrt((total**2 - (said**2).sum(axis=1)) * (total**2 - (there**2).sum(axis=1)))
        return _divided(total * hits.sum(axis=1) - (said * there).sum(axis=1), spread)
    kind, _, average = metric.partition("_")
    cases = {"precision": said, "recall": there, "f1": (there + said) / 2}[kind]
    if average == "micro":
        return _divided(hits.sum(axis=1), cases.sum(axis=1))
    each = _divided(hits, cases)
    if not average:
        return each[:, 1]
    counted = np.full(each.shape, True) if every else there + said > 0
    return (each * counted).sum(axis=1) / counted.sum(axis=1)


def _divided(part: Numbers, whole: Numbers) -> Numbers:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _of_numbers(metric: str, labels: Numbers, answers: Numbers) -> Score:
    """Return the score of rows drawn anew, the mean over several targets."""
    right, said = (values.reshape(len(values), -1) for values in (labels, answers))
    measures = [_MEASURES[name] for name in (("pearson", "spearman") if metric == "pearson_spearman" else (metric,))]

    def score(counts: Counts) -> Numbers:
        rows = (np.repeat(np.arange(len(right)), count) for count in counts)
        pairs = ([(right[row, target], said[row, target]) for target in range(right.shape[1])] for row in rows)
        return np.array([np.mean([measure(*pair) for measure in measures for pair in drawn]) for drawn in pairs])

    return score


def _pearson(labels: Numbers, answers: Numbers) -> float:
    if np.ptp(labels) == 0 or np.ptp(answers) == 0:
        return float("nan")
    return float(np.corrcoef(labels, answers)[0, 1])


def _spearman(labels: Numbers, answers: Numbers) -> float:
    from scipy.stats import rankdata

    return _pearson(rankdata(labels), rankdata(answers))


def _mse(labels: Numbers, answers: Numbers) -> float:
    return float(np.mean((labels - answers) ** 2))


_MEASURES = {"pearson": _pearson, "spearman": _spearman, "mse": _mse}
