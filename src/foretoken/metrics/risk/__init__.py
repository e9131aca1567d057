"""Guarantees for answers, fitted on labelled documents that are exchangeable with those that will be answered.

Exchangeable means that their order says nothing: documents of one source and time, labelled alike. Nothing is assumed
of the model. Everything here takes arrays.
"""

from foretoken.metrics.risk.abstention import Abstention, fit_abstention
from foretoken.metrics.risk.conformal import fit_intervals, fit_label_sets, fit_sets, in_set

__all__ = ["Abstention", "fit_abstention", "fit_intervals", "fit_label_sets", "fit_sets", "in_set"]
