"""A run of the baseline: the same folder, record and predictions as any other run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from foretoken.data.load import Loaded, load_data
from foretoken.files import JsonObject
from foretoken.processes import is_main_process
from foretoken.training.baseline.options import tfidf_options
from foretoken.training.baseline.tfidf import Tfidf, check_problem, fit, texts_of, word_counts
from foretoken.training.model.load import ParameterCount
from foretoken.training.problems import Problem
from foretoken.training.recipe.recipe import Recipe
from foretoken.training.run.card import card_values
from foretoken.training.run.fingerprint import of_data
from foretoken.training.run.prepare import beginnings_of, problem_of
from foretoken.training.run.record import RunRecord
from foretoken.training.run.results import (
    Prediction,
    fitted_on,
    measures,
    prediction_of,
    saved,
    write_errors,
    write_predictions,
)
from foretoken.training.run_folder import PREDICTIONS, SAVED
from foretoken.training.tokens.encode import count_lengths, describe
from foretoken.training.trainer.memory import PeakMemory

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)


def train_baseline(recipe: Recipe, measured: Sequence[str], data: Loaded | None = None) -> JsonObject:
    """Fit the baseline, measure it on these splits and return the record of the run.

    Raises:
        ForetokenError: the data cannot be used, or something cannot be written.
    """
    options, memory = tfidf_options(recipe.method, []), PeakMemory()
    assert options is not None  # checked with the recipe
    data = data or load_data(recipe.data)
    problem = problem_of(recipe, data)
    check_problem(problem)
    lengths = {name: word_counts(texts_of(split)) for name, split in data.splits.items()}
    documents = {name: count_lengths(counts, None) for name, counts in lengths.items()}
    log.info("tf-idf reads whole documents; what the recipe says of model, lengths and training has no effect")
    for name, counts in documents.items():
        log.info("%s: %s", name, describe(counts, None))
    began = time.perf_counter()
    model = fit(options, problem, data.splits["train"], data.splits["validation"])
    seconds = time.perf_counter() - began
    count = ParameterCount(adapter=model.num_weights, head=0, total=model.num_weights)
    log.info("tf-idf has %s terms and %s weights", f"{len(model.terms):,}", f"{count.trainable:,}")
    record = RunRecord.start(recipe)
    with record.noting_the_end():
        record.update(
            problem=problem.name,
            base_model=None,
            labels=list(problem.labels),
            max_length=None,
            documents={name: counts.to_dict() for name, counts in documents.items()},
            parameters=asdict(count) | {"trainable": count.trainable, "percent": count.percent},
            fingerprint=of_data(data.splits),
            **data.left_out,
        )
        predictions = {name: predicted(model, problem, data.splits[name], lengths[name]) for name in measured}
        fitted = fitted_on(recipe.calibration, predictions["validation"])
        if is_main_process():
            card = card_values(
                problem, recipe, fitted.to_dict(), max_length=None, base_model=None, columns=data.columns
            )
            decided = {name: prediction.deciding(fitted) for name, prediction in predictions.items()}
            with saved(record.folder / SAVED[1], card, decided["validation"]) as folder:
                model.save(folder)
            write_predictions(record.folder / PREDICTIONS, decided)
            if recipe.save_errors:
                write_errors(record.folder, decided, {name: beginnings_of(data.splits[name]) for name in measured})
        found = measures(predictions, fitted)
        best = {"metric": recipe.training.metric, "value": found["validation"].get(recipe.training.metric), "step": 0}
        timings = {
            "train_seconds": seconds,
            "step_seconds_median": None,
            "eval_seconds": sum(item.seconds for item in predictions.values()),
            "tokens_per_second": None,
        }
        record.update(best=best, steps=0, epochs=[], **found, timings=timings, memory=memory.measured())
    return record.values


def predicted(model: Tfidf, problem: Problem, split: Dataset, lengths: Sequence[int]) -> Prediction:
    """Return the predictions for a split, beside its labels; the lengths are in words."""
    began = time.perf_counter()
    outputs, _ = problem.decode(model.logits(texts_of(split)), None)
    table = split.add_column("length", list(lengths)).add_column("position", list(range(len(lengths))))
    return prediction_of(problem, table, outputs, problem.labels_of(split), time.perf_counter() - began)
