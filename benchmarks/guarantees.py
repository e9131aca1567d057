"""Whether guarantees hold, and what they cost: 1,000 calibration and test splits of stored predictions.

    python -m benchmarks.guarantees [--output benchmarks/results/guarantees] [--splits 1000] [--vectors bench/vectors]

Predictions are those of a logistic regression on frozen vectors of `minilm` (pairs: absolute difference and product),
each of a model of five that was not fitted on its document. A split draws documents to fit
`foretoken.metrics.risk.fit_abstention` on; all others are its test. `split` is the share of splits in which more than
`max_error` of the answered test documents are wrong, some by the chance of which documents these are. `broken` leaves
that out: documents are drawn with replacement, so that the rate of errors of new ones is known, that of all.

Two coverages stand beside. `known` is the largest share of the test documents that could be answered if their labels
were known. `possible` is the largest expected share that any rule can answer that keeps the limit for every model (see
:func:`possible_coverage`): fewer documents prove less. Vectors are made once, in half an hour of one core, and kept in
the folder `--vectors`.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import sklearn
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import foretoken
from benchmarks.suite.machine import hardware
from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.errors import DataError
from foretoken.files import write_json
from foretoken.metrics.risk import fit_abstention

CONFIDENCE = 0.95
LETTERS = 500  # of a text that are read


class Task(NamedTuple):
    """How many of a task's documents are used of each split, and what is asked of it: limits and sizes."""

    documents: dict[str, int]
    max_errors: tuple[float, ...]
    sizes: tuple[int, ...]


TASKS = {
    "20newsgroups": Task({"train": 6000, "test": 7317}, (0.05, 0.1, 0.2), (500, 1000, 2000, 4000)),
    "sst2": Task({"train": 30_000}, (0.05, 0.1), (500, 1000, 2000, 4000, 8000)),
    "mrpc": Task({"train": 3668, "validation": 408, "test": 1725}, (0.1, 0.15, 0.2), (500, 1000, 2000)),
}


def vectors(name: str, task: Task, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors and labels of a task's documents, made once."""
    file = folder / f"{name}.npz"
    if not file.is_file():
        splits = load_data(DataOptions(task=name)).splits
        parts = []
        for split, documents in task.documents.items():
            rows = splits[split].select(np.random.default_rng(0).permutation(len(splits[split]))[:documents].tolist())
            parts.append((_vectors_of(rows), np.array(rows["label"])))
        folder.mkdir(parents=True, exist_ok=True)
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        np.savez(file, x=x, y=y)
    stored = np.load(file)
    return stored["x"], stored["y"]


def _vectors_of(rows: Any) -> np.ndarray:
    first, *second = [
        foretoken.embed("minilm", [text[:LETTERS] for text in rows[column]])
        for column in ("text", "text_pair")
        if column in rows.column_names
    ]
    return np.hstack([np.abs(first - second[0]), first * second[0]]) if second else first


def best_coverage(confidences: np.ndarray, wrong: np.ndarray, max_error: float) -> float:
    """Return the largest share that can be answered with no larger share of errors, if it is known which are wrong."""
    errors, counts = np.cumsum(wrong[np.argsort(-confidences)]), np.arange(1, len(wrong) + 1)
    passing = counts[errors <= max_error * counts]
    return float(passing.max(initial=0)) / len(wrong)


def possible_coverage(confidences: np.ndarray, wrong: np.ndarray, max_error: float, size: int) -> float:
    """Return the largest expected share that a rule fitted on so many documents can answer if it holds for all models.

    A model may be as good as this one, or its errors above a threshold may be just more than `max_error`. The rule must
    not answer so many documents in the second case with a probability above 1 - CONFIDENCE, so in the first one it does
    so at most with the power of the most powerful test between the two (Neyman and Pearson), which counts errors. That
    holds for each share c, and the expected share is the integral of P(share >= c) over c.
    """
    risk = np.cumsum(wrong[np.argsort(-confidences)]) / np.arange(1, len(wrong) + 1)
    answered, level = np.arange(1, size + 1), 1 - CONFIDENCE
    rate = risk[(answered * len(wrong) / size).astype(int) - 1]
    limit = binom.ppf(level, answered, max_error)  # of so many errors the test passes a part, of fewer all
    part = (level - binom.cdf(limit - 1, answered, max_error)) / binom.pmf(limit, answered, max_error)
    power = binom.cdf(limit - 1, answered, rate) + part * binom.pmf(limit, answered, rate)
    return float(np.maximum.accumulate(power[::-1]).mean())


def answered_of(
    confidences: np.ndarray, wrong: np.ndarray, known: np.ndarray, others: np.ndarray, max_error: float
) -> np.ndarray:
    """Return which of other documents are answered by the rule fitted on known ones."""
    try:
        fitted = fit_abstention(confidences[known], wrong[known], max_error=max_error, confidence=CONFIDENCE)
    except DataError:
        return others[:0]
    return others[fitted.answers(confidences[others])]


def measure(confidences: np.ndarray, wrong: np.ndarray, max_error: float, size: int, splits: int) -> dict[str, Any]:
    """Return how often the limit is broken over splits, and how many documents are answered."""
    everything = np.arange(len(wrong))
    above, above_in_test, answered, best = [], [], [], []
    for seed in range(splits):
        generator = np.random.default_rng(seed)
        drawn = generator.integers(0, len(wrong), size)
        kept = answered_of(confidences, wrong, drawn, everything, max_error)
        above.append(len(kept) > 0 and wrong[kept].mean() > max_error)
        known, test = np.split(generator.permutation(len(wrong)), [size])
        kept = answered_of(confidences, wrong, known, test, max_error)
        above_in_test.append(len(kept) > 0 and wrong[kept].mean() > max_error)
        answered.append(len(kept) / len(test))
        best.append(best_coverage(confidences[test], wrong[test], max_error))
    coverage, known, possible = np.mean(answered), np.mean(best), possible_coverage(confidences, wrong, max_error, size)
    return {
        "max_error": max_error,
        "fitted_on": size,
        "tested_on": len(wrong) - size,
        "broken": float(np.mean(above)),
        "broken_in_split": float(np.mean(above_in_test)),
        "nothing_answered": float(np.mean(np.array(answered) == 0)),
        "coverage": float(coverage),
        "known_coverage": float(known),
        "possible_coverage": possible,
        "of_possible": float(coverage / possible),
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table."""
    heads = ("task", "wrong", "max_error", "fitted on", "broken", "split", "coverage", "possible", "of possible")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for found in results:
        for row in found["rows"]:
            keys = ("broken", "broken_in_split", "coverage", "possible_coverage", "of_possible")
            cells = [found["task"], f"{found['wrong']:.1%}", f"{row['max_error']:g}", f"{row['fitted_on']:,}"]
            lines.append(f"| {' | '.join([*cells, *(f'{row[key]:.1%}' for key in keys)])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/guarantees"))
    parser.add_argument("--vectors", type=Path, default=Path("bench/vectors"))
    parser.add_argument("--splits", type=int, default=1000)
    options = parser.parse_args()
    results = []
    for name, task in TASKS.items():
        x, y = vectors(name, task, options.vectors)
        model = LogisticRegression(max_iter=2000)
        probabilities = cross_val_predict(model, x, y, cv=5, method="predict_proba")
        confidences, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != y
        asked = [(max_error, size) for max_error in task.max_errors for size in task.sizes]
        rows = [measure(confidences, wrong, max_error, size, options.splits) for max_error, size in asked]
        results.append({"task": name, "documents": len(wrong), "wrong": float(wrong.mean()), "rows": rows})
        print(table(results[-1:]), flush=True)
    versions = {package.__name__: package.__version__ for package in (scipy, sklearn, foretoken)}
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "splits": options.splits, "versions": versions}
    write_json(options.output.with_suffix(".json"), facts | {"confidence": CONFIDENCE, "results": results})


if __name__ == "__main__":
    main()
