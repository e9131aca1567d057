"""Pure functions from predictions to numbers."""

from foretoken.metrics.calibration import ReliabilityBin, expected_calibration_error, reliability_bins
from foretoken.metrics.classification import classification_metrics
from foretoken.metrics.table import METRICS, Metric, metric_names

__all__ = [
    "METRICS",
    "Metric",
    "ReliabilityBin",
    "classification_metrics",
    "expected_calibration_error",
    "metric_names",
    "reliability_bins",
]
