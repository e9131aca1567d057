"""The scaling of a run's probabilities, fitted on validation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from foretoken.metrics.scaling import Scaling, fit_temperature, fit_vector
from foretoken.metrics.scores import negative_log_likelihood

if TYPE_CHECKING:
    from foretoken.training.run.results import Prediction

log = logging.getLogger(__name__)
_FIT = {"temperature": fit_temperature, "vector": fit_vector}


def fitted(kind: str | None, validation: Prediction) -> Scaling | None:
    """Return the scaling of a kind that validation asks for; None for no kind."""
    if kind is None:
        return None
    scaling = _FIT[kind](validation.outputs, validation.labels)
    scaled = validation.scaled(scaling).outputs
    before, after = (negative_log_likelihood(outputs, validation.labels) for outputs in (validation.outputs, scaled))
    log.info("%s scaling fitted on validation: negative log-likelihood %.4f -> %.4f", kind, before, after)
    return scaling
