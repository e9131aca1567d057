"""Pure functions from predictions to numbers."""

from foretoken.data.problems import PROBLEMS
from foretoken.metrics.classification import classification_metrics
from foretoken.metrics.risk.selective import aurc, coverage_risk
from foretoken.metrics.table import METRICS, Metric, metric_names

__all__ = ["METRICS", "PROBLEMS", "Metric", "aurc", "classification_metrics", "coverage_risk", "metric_names"]
