"""Metrics of a loaded classifier on labelled documents."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from foretoken.training.predict import Classifier, predict_texts
from foretoken.training.results import Prediction, write_predictions
from foretoken.training.tokenise import describe

log = logging.getLogger(__name__)


def evaluate(
    classifier: Classifier,
    documents: Dataset,
    *,
    batch_size: int = 16,
    tokens_per_batch: int | None = None,
    n_bins: int = 15,
    predictions: Path | None = None,
) -> dict[str, Any]:
    """Return the metrics on a table with id, text and label; write the predictions if a file is named."""
    began = time.perf_counter()
    probabilities, truncation = predict_texts(
        classifier, documents["text"], batch_size=batch_size, tokens_per_batch=tokens_per_batch
    )
    log.info(describe(truncation, classifier.max_length))
    outcome = Prediction(
        ids=list(documents["id"]),
        labels=np.asarray(documents["label"]),
        probabilities=probabilities,
        seconds=time.perf_counter() - began,
    )
    if predictions is not None:
        write_predictions(predictions, {predictions.stem: outcome}, classifier.labels)
    return outcome.metrics(n_bins)
