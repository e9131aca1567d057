"""Metrics and counts as text of a report, and the direction of metrics."""

from __future__ import annotations

import math

from foretoken.metrics.table import CALIBRATION, METRICS, metrics_of, with_class

PART = "/"  # between the part of a test split and the metric: `mismatched/accuracy`
ABSENT = "-"


def greater_is_better(metric: str) -> bool:
    """Tell whether greater values of a metric are better; an unknown metric counts as a score.

    >>> greater_is_better("f1_macro"), greater_is_better("ece"), greater_is_better("mismatched/accuracy")
    (True, False, True)
    """
    known = METRICS.get(_bare(metric))
    return known.greater_is_better if known else True


def is_share(metric: str) -> bool:
    """Tell whether a metric is printed in percent; an unknown one counts as a score, which is.

    >>> is_share("accuracy"), is_share("ece")
    (True, False)
    """
    known = METRICS.get(_bare(metric))
    return known.is_share if known else True


def is_calibration(metric: str) -> bool:
    """Tell whether a metric is of the probabilities.

    >>> is_calibration("accuracy"), is_calibration("ece")
    (False, True)
    """
    return _bare(metric) in metrics_of(CALIBRATION)


def heading(metric: str, positive: str = "") -> str:
    """Return the short name of a metric, for the head of a column, with its positive class.

    >>> heading("f1_macro"), heading("ece_mass"), heading("mismatched/accuracy")
    ('F1 (macro)', 'ECE (equal mass)', 'Accuracy, mismatched')
    >>> heading("f1", "cancer")
    'F1 (cancer)'
    """
    bare, part = _bare(metric), metric.rpartition(PART)[0]
    name = with_class(bare, positive, METRICS[bare].heading if bare in METRICS else bare)
    return f"{name}, {part}" if part else name


def printed(metric: str, value: float | None) -> str:
    """Return a score as text: shares in percent with one decimal, errors with three decimals.

    >>> printed("accuracy", 0.8154), printed("ece", 0.0421), printed("accuracy", None)
    ('81.5', '0.042', '-')
    """
    if value is None or math.isnan(value):
        return ABSENT
    return f"{100 * value:.1f}" if is_share(metric) else f"{value:.3f}"


def spread(metric: str, middle: float, std: float) -> str:
    """Return mean (or median) and standard deviation as text; without the deviation if it is NaN.

    >>> spread("accuracy", 0.8154, 0.0042), spread("accuracy", 0.8154, float("nan"))
    ('81.5 ± 0.4', '81.5')
    """
    return printed(metric, middle) if math.isnan(std) else f"{printed(metric, middle)} ± {printed(metric, std)}"


def counted(number: int | str, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def _bare(metric: str) -> str:
    return metric.rpartition(PART)[2]
