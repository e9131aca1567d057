"""Metrics of a run: the names that a recipe may select by, and probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretoken.data.options import DataOptions
from foretoken.data.problems import (
    CANDIDATES,
    CLASSIFICATION,
    GENERATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from foretoken.data.tasks.table import TASKS, problem_name
from foretoken.errors import no_such
from foretoken.metrics import METRICS
from foretoken.options import Errors

_DEFAULTS = {
    CLASSIFICATION: "f1_macro",
    MULTI_LABEL: "f1_micro",
    REGRESSION: "pearson_spearman",
    MULTIPLE_CHOICE: "accuracy",
    TOKEN_CLASSIFICATION: "f1",
    CANDIDATES: "accuracy",
    GENERATION: "loss",
    QUESTION_ANSWERING: "token_f1",
}


def metric_errors(name: str) -> Errors:
    """Return one line if there is no such selection metric."""
    return [] if name in METRICS else [f"training.metric: {no_such('metric', name, METRICS)}"]


def default_metric(data: DataOptions) -> str:
    """Return what selects the best checkpoint where the recipe names no metric: the task's own, or the problem's.

    Texts are selected by their loss, as generating them at every evaluation takes long.
    """
    task, problem = TASKS.get(data.task or ""), problem_name(data)
    return task.metric if task is not None and problem != GENERATION else _DEFAULTS[problem]


def greater_is_better(name: str) -> bool:
    """Tell metrics to be raised from those to be lowered."""
    return METRICS[name].greater_is_better


def probabilities_of(logits: Any) -> np.ndarray:
    """Return the softmax of logits [B, C] in float64."""
    scores = np.asarray(logits, dtype=np.float64)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)
