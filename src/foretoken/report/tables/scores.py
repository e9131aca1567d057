"""How a metric is headed and printed in a report, and which way of it is better."""

from __future__ import annotations

import math

from foretoken.metrics.table import METRICS

CALIBRATION = ("ece", "ece_mass", "ece_upper_edge", "mce", "ece_classwise", "brier", "nll", "aurc")
PART = "/"  # between the part of a test split and the metric: `mismatched/accuracy`
ABSENT = "-"
_NOT_A_SHARE = (*CALIBRATION, "loss", "mse")  # printed as they are; everything else as percent
_SHORT = {
    "precision_micro": "P (micro)",
    "recall_micro": "R (micro)",
    "precision_macro": "P (macro)",
    "recall_macro": "R (macro)",
    "precision": "P",
    "recall": "R",
    "matthews": "Matthews",
    "roc_auc": "ROC AUC",
    "accuracy_f1": "(Accuracy + F1) / 2",
    "ece": "ECE",
    "ece_mass": "ECE (equal mass)",
    "ece_upper_edge": "ECE (upper edges)",
    "mce": "MCE",
    "ece_classwise": "ECE (classwise)",
    "brier": "Brier",
    "nll": "NLL",
    "aurc": "AURC",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "pearson_spearman": "(Pearson + Spearman) / 2",
    "mse": "MSE",
}


def greater_is_better(metric: str) -> bool:
    """Tell which way of a metric is better; a metric that nobody knows is taken for a score.

    >>> greater_is_better("f1_macro"), greater_is_better("ece"), greater_is_better("mismatched/accuracy")
    (True, False, True)
    """
    known = METRICS.get(_bare(metric))
    return known.greater_is_better if known else True


def heading(metric: str) -> str:
    """Return the short name of a metric, for the head of a column.

    >>> heading("f1_macro"), heading("ece_mass"), heading("mismatched/accuracy")
    ('F1 (macro)', 'ECE (equal mass)', 'Accuracy, mismatched')
    """
    bare, part = _bare(metric), metric.rpartition(PART)[0]
    known = METRICS.get(bare)
    name = _SHORT.get(bare) or (known.title if known else bare)
    return f"{name}, {part}" if part else name


def printed(metric: str, value: float | None) -> str:
    """Return a score as the papers print it: shares in percent with one decimal, errors with three.

    >>> printed("accuracy", 0.8154), printed("ece", 0.0421), printed("accuracy", None)
    ('81.5', '0.042', '-')
    """
    if value is None or math.isnan(value):
        return ABSENT
    return f"{value:.3f}" if _bare(metric) in _NOT_A_SHARE else f"{100 * value:.1f}"


def spread(metric: str, mean: float, std: float) -> str:
    """Return mean and standard deviation; the mean alone where one value has no deviation.

    >>> spread("accuracy", 0.8154, 0.0042), spread("accuracy", 0.8154, float("nan"))
    ('81.5 ± 0.4', '81.5')
    """
    return printed(metric, mean) if math.isnan(std) else f"{printed(metric, mean)} ± {printed(metric, std)}"


def _bare(metric: str) -> str:
    return metric.rpartition(PART)[2]
