"""Run folders as `foretoken train` leaves them, made up: run.json and predictions.parquet, nothing trained."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foretoken.report.runs.groups import collect
from foretoken.report.runs.records import find_runs

LABELS = ("no", "yes")
VERSIONS = {"foretoken": "0.1.0", "torch": "2.13.0"}
HARDWARE = {"machine": "x86_64", "cpus": 2, "threads": 2, "gpu": None, "processes": 1}


def recipe(method="lora", *, task="mail", seed=0, model="minilm", options=None, data=None, max_length=None, **training):
    return {
        "model": model,
        "data": {"task": task, "path": None, "max_train": None} | (data or {}),
        "method": {"name": method} | (options or {}),
        "lengthen": None,
        "max_length": max_length,
        "training": {"learning_rate": 1e-3, "metric": "f1_macro", "seed": seed, "num_threads": 1, "epochs": 2}
        | training,
        "output": "runs",
        "name": f"{task}-{method}-seed{seed}",
        "ece_bins": 15,
    }


def make_run(folder, method="lora", *, validation=0.8, test=0.7, correct=None, **changes):
    """Write a finished run; a number as `validation` or `test` is its f1_macro; `correct` makes predictions."""
    record = changes.pop("record", {})
    asked = recipe(method, **changes)
    values = {
        "status": "finished",
        "name": folder.name,
        "started": "2026-01-01T00:00:00+00:00",
        "recipe": asked,
        "seed": asked["training"]["seed"],
        "versions": VERSIONS,
        "hardware": HARDWARE,
        "problem": "classification",
        "labels": list(LABELS),
        "max_length": 512,
        "documents": {
            name: {"documents": 40, "truncated": 4, "longest": 900, "length_quantiles": list(range(10, 919, 9))}
            for name in ("train", "validation", "test")
        },
        "parameters": {"adapter": 100, "head": 50, "total": 10_000, "trainable": 150, "percent": 1.5},
        "epochs": [_epoch(step, validation) for step in (1, 2)],
        "best": {"metric": asked["training"]["metric"], "value": validation, "step": 2},
        "steps": 2,
        "validation": scores(validation),
        "timings": {"train_seconds": 2.0, "step_seconds_median": 0.5, "eval_seconds": 1.0, "tokens_per_second": 100.0},
        "ended": "2026-01-01T00:01:00+00:00",
    }
    if test is not None:
        values["test"] = scores(test)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({k: v for k, v in (values | record).items() if v is not ...}))
    if correct is not None:
        write_predictions(folder, correct)
    return folder


def make_seeds(folder, method, tests, **changes):
    """Write a run for each seed, whose test scores these are."""
    for seed, test in enumerate(tests):
        make_run(folder / f"{method}{seed}", method, seed=seed, test=test, **changes)


def results(*folders, **options):
    """Return what a report collects of the runs in these folders."""
    return collect(find_runs(folders), **options)


def scores(value):
    if isinstance(value, dict):
        return value
    names = ("accuracy", "precision_micro", "recall_micro", "f1_micro", "precision_macro", "recall_macro", "f1_macro")
    return dict.fromkeys(names, value) | {"ece": round(1 - value, 6), "ece_mass": round(1 - value, 6), "brier": 0.2}


def write_predictions(folder, correct, *, ids=None, split="test"):
    """Write predictions that are right where `correct` says so."""
    right = np.asarray(correct, dtype=bool)
    label = np.arange(len(right)) % 2
    said = np.where(right, label, 1 - label)
    sure = np.where(right, 0.9, 0.6)
    yes = np.where(said == 1, sure, 1 - sure)
    columns = {
        "split": [split] * len(right),
        "id": ids or [f"document-{number}" for number in range(len(right))],
        "label": [LABELS[index] for index in label],
        "prediction": [LABELS[index] for index in said],
        "prob_no": 1 - yes,
        "prob_yes": yes,
    }
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    set_accuracy(folder, split, float(right.mean()))


def set_accuracy(folder, split, accuracy):
    """Let the record of a run, if it has measured a split, say what its predictions say."""
    values = json.loads((folder / "run.json").read_text())
    if "accuracy" in values.get(split, {}):
        values[split]["accuracy"] = accuracy
        (folder / "run.json").write_text(json.dumps(values))


def _epoch(step, validation):
    value = scores(validation)
    return {
        "step": step,
        "epoch": step,
        "train_loss": 1 / step,
        "learning_rate": 1e-3,
        "validation": value | {"loss": 0.5},
    }
