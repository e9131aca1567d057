"""The one table of metrics: what a recipe may select by, and what a report may print."""

from __future__ import annotations

from typing import NamedTuple

from foretoken.errors import ConfigError


class Metric(NamedTuple):
    """How a metric is headed in a table, and which way is better."""

    title: str
    greater_is_better: bool


METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", greater_is_better=True),
    "precision_micro": Metric("Precision (micro)", greater_is_better=True),
    "recall_micro": Metric("Recall (micro)", greater_is_better=True),
    "f1_micro": Metric("F1 (micro)", greater_is_better=True),
    "precision_macro": Metric("Precision (macro)", greater_is_better=True),
    "recall_macro": Metric("Recall (macro)", greater_is_better=True),
    "f1_macro": Metric("F1 (macro)", greater_is_better=True),
    "f1": Metric("F1 (positive class)", greater_is_better=True),
    "ece": Metric("Expected calibration error", greater_is_better=False),
}
_BINARY_ONLY = {"f1"}


def metric_names(num_classes: int) -> tuple[str, ...]:
    """Return the names of the metrics that a task of ``num_classes`` classes has, in table order.

    Raises :class:`~foretoken.errors.ConfigError` for fewer than two classes.

    >>> metric_names(2)[-2:], metric_names(20)[-2:]
    (('f1', 'ece'), ('f1_macro', 'ece'))
    """
    if num_classes < 2:
        raise ConfigError(f"num_classes is {num_classes}; classification needs at least 2")
    return tuple(name for name in METRICS if num_classes == 2 or name not in _BINARY_ONLY)
