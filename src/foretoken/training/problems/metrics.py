"""Metrics of a run: the names that a recipe may select by, and probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretoken.data.options import DataOptions
from foretoken.data.problems import PROBLEMS, Answer
from foretoken.data.tasks.table import TASKS, problem_name
from foretoken.errors import no_such
from foretoken.metrics import METRICS
from foretoken.options import Errors


def metric_errors(name: str) -> Errors:
    """Return one line if there is no such selection metric."""
    return [] if name in METRICS else [f"training.metric: {no_such('metric', name, METRICS)}"]


def default_metric(data: DataOptions) -> str:
    """Return what selects the best checkpoint where the recipe names no metric: the task's own, or the problem's.

    Texts are selected by their loss, as generating them at every evaluation takes long.
    """
    task, problem = TASKS.get(data.task or ""), PROBLEMS[problem_name(data)]
    return task.metric if task is not None and problem.answer is not Answer.TEXT else problem.metric


def probabilities_of(logits: Any) -> np.ndarray:
    """Return the softmax of logits [B, C] in float64."""
    scores = np.asarray(logits, dtype=np.float64)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)
