"""Pure functions from predictions to numbers."""

from foretoken.data.problems import PROBLEMS
from foretoken.metrics.answers import answer_metrics
from foretoken.metrics.calibration import (
    ReliabilityBin,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
    smooth_calibration_error,
    upper_edge_calibration_error,
)
from foretoken.metrics.choice import choice_metrics, grouped_exact_match
from foretoken.metrics.classification import classification_metrics
from foretoken.metrics.generation import GENERATION_METRICS, generation_metrics
from foretoken.metrics.regression import regression_metrics
from foretoken.metrics.risk.selective import aurc, coverage_risk
from foretoken.metrics.scaling import Scaling, fit_temperature, fit_vector
from foretoken.metrics.scores import brier_score, negative_log_likelihood
from foretoken.metrics.spans import span_metrics, tag_metrics, to_iob2
from foretoken.metrics.statistics import expected_validation_performance, holm, paired_bootstrap, summary, t_test
from foretoken.metrics.table import METRICS, Metric, check_metric, metric_names

__all__ = [
    "GENERATION_METRICS",
    "METRICS",
    "PROBLEMS",
    "Metric",
    "ReliabilityBin",
    "Scaling",
    "answer_metrics",
    "aurc",
    "brier_score",
    "check_metric",
    "choice_metrics",
    "classification_metrics",
    "classwise_calibration_error",
    "coverage_risk",
    "expected_calibration_error",
    "expected_validation_performance",
    "fit_temperature",
    "fit_vector",
    "generation_metrics",
    "grouped_exact_match",
    "holm",
    "maximum_calibration_error",
    "metric_names",
    "negative_log_likelihood",
    "paired_bootstrap",
    "regression_metrics",
    "reliability_bins",
    "smooth_calibration_error",
    "span_metrics",
    "summary",
    "t_test",
    "tag_metrics",
    "to_iob2",
    "upper_edge_calibration_error",
]
