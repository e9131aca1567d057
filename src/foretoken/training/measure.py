"""Metrics of a run: the selection metric, and what the Trainer computes at every evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from foretoken.errors import ConfigError, did_you_mean
from foretoken.metrics import METRICS, classification_metrics, metric_names
from foretoken.training.typed import Errors


def metric_errors(name: str) -> Errors:
    """Return one line if there is no such selection metric."""
    if name in METRICS:
        return []
    known = ", ".join(METRICS)
    return [f"training.metric: no metric {name!r}{did_you_mean(name, METRICS) or '; known: ' + known}"]


def check_metric(name: str, num_labels: int) -> None:
    """Raise ConfigError for a selection metric that data with so many labels do not have."""
    known = metric_names(num_labels)
    if name not in known:
        raise ConfigError(
            f"training.metric: {name} does not exist for {num_labels} labels; use one of {', '.join(known)}"
        )


def greater_is_better(name: str) -> bool:
    """Tell metrics to be raised from those to be lowered."""
    return METRICS[name].greater_is_better


def probabilities_of(logits: Any) -> np.ndarray:
    """Return the softmax of logits [B, C] in float64."""
    scores = np.asarray(logits, dtype=np.float64)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def metrics_function(*, n_bins: int) -> Callable[[Any], dict[str, float]]:
    """Return what the Trainer calls with the logits and labels of a split."""

    def compute(prediction: Any) -> dict[str, float]:
        return classification_metrics(probabilities_of(prediction.predictions), prediction.label_ids, n_bins=n_bins)

    return compute
