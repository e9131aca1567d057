"""Whether guarantees hold, and what they cost: 1,000 calibration and test splits of stored predictions.

    python -m benchmarks.guarantees [--output benchmarks/results/guarantees] [--splits 1000] [--vectors bench/vectors]

Predictions are those of a logistic regression on frozen vectors of `minilm` (pairs: absolute difference and product).
A split draws documents to fit `foretoken.metrics.risk.fit_abstention` on; all others are its test. It is broken where
more than `max_error` of the answered test documents are wrong. The best coverage is the largest share of the test
documents that could be answered if their labels were known. `one_test` is the share of it that one exact binomial test
would leave whose threshold was known before: what no method with this confidence can pass by much. Vectors are made
once, in half an hour of one core, and kept in the folder `--vectors`.
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
    """How a task's documents are shared out, and what is asked of it: training documents, limits, and sizes."""

    train: int
    pool: tuple[str, ...]  # splits whose predictions are stored; those of train are what training leaves
    documents: int
    max_errors: tuple[float, ...]
    sizes: tuple[int, ...]


TASKS = {
    "20newsgroups": Task(6000, ("test",), 7317, (0.05, 0.1, 0.2), (500, 1000, 2000, 3500, 5000)),
    "sst2": Task(10_000, ("train",), 20_000, (0.05, 0.1), (500, 1000, 2000, 5000, 10_000, 15_000)),
    "mrpc": Task(3668, ("validation", "test"), 2133, (0.05, 0.1, 0.2), (500, 1000, 1500)),
}


def vectors(name: str, task: Task, folder: Path) -> dict[str, np.ndarray]:
    """Return vectors and labels of the documents to train on and of those to predict, made once."""
    file = folder / f"{name}.npz"
    if not file.is_file():
        splits = load_data(DataOptions(task=name)).splits
        chosen = np.random.default_rng(0).permutation(len(splits["train"]))
        parts = [("train", splits["train"].select(chosen[: task.train].tolist()))]
        beyond = {"train": chosen[task.train : task.train + task.documents].tolist()}
        parts += [("pool", splits[split].select(beyond.get(split, range(len(splits[split]))))) for split in task.pool]
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, list[np.ndarray]] = {}
        for part, rows in parts:
            found.setdefault(f"{part}_x", []).append(_vectors_of(rows))
            found.setdefault(f"{part}_y", []).append(np.array(rows["label"]))
        np.savez(file, **{key: np.concatenate(values) for key, values in found.items()})
    return dict(np.load(file))


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


def one_test(confidences: np.ndarray, wrong: np.ndarray, max_error: float, size: int) -> float:
    """Return the coverage at which a test of as many documents, with the expected number of errors, just passes."""
    risk = np.cumsum(wrong[np.argsort(-confidences)]) / np.arange(1, len(wrong) + 1)
    answered = np.arange(1, size + 1)
    places = (answered * len(wrong) / size).astype(int) - 1
    passes = binom.cdf(np.round(risk[places] * answered), answered, max_error) <= 1 - CONFIDENCE
    return float(answered[passes].max(initial=0)) / size


def measure(confidences: np.ndarray, wrong: np.ndarray, max_error: float, size: int, splits: int) -> dict[str, Any]:
    """Return how often the limit is broken over splits, and how many documents are answered."""
    broken, answered, best = [], [], []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(wrong))
        known, test = order[:size], order[size:]
        try:
            fitted = fit_abstention(confidences[known], wrong[known], max_error=max_error, confidence=CONFIDENCE)
            kept = test[fitted.answers(confidences[test])]
        except DataError:
            kept = test[:0]
        broken.append(len(kept) > 0 and wrong[kept].mean() > max_error)
        answered.append(len(kept) / len(test))
        best.append(best_coverage(confidences[test], wrong[test], max_error))
    ceiling, highest = float(np.mean(best)), best_coverage(confidences, wrong, max_error)
    return {
        "max_error": max_error,
        "fitted_on": size,
        "tested_on": len(wrong) - size,
        "broken": float(np.mean(broken)),
        "nothing_answered": float(np.mean(np.array(answered) == 0)),
        "coverage": float(np.mean(answered)),
        "best_coverage": ceiling,
        "of_best": float(np.mean(answered)) / ceiling if ceiling else None,
        "one_test_of_best": one_test(confidences, wrong, max_error, size) / highest if highest else None,
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a table."""
    heads = (
        "task",
        "wrong",
        "max_error",
        "fitted on",
        "tested on",
        "broken",
        "coverage",
        "best",
        "of best",
        "one test",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for found in results:
        for row in found["rows"]:
            shares = [row[key] for key in ("broken", "coverage", "best_coverage", "of_best", "one_test_of_best")]
            cells = [found["task"], f"{found['wrong']:.1%}", f"{row['max_error']:g}", f"{row['fitted_on']:,}"]
            cells.append(f"{row['tested_on']:,}")
            lines.append(f"| {' | '.join([*cells, *('' if share is None else f'{share:.1%}' for share in shares)])} |")
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
        data = vectors(name, task, options.vectors)
        model = LogisticRegression(max_iter=2000).fit(data["train_x"], data["train_y"])
        probabilities = model.predict_proba(data["pool_x"])
        confidences, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != data["pool_y"]
        asked = [(max_error, size) for max_error in task.max_errors for size in task.sizes]
        rows = [measure(confidences, wrong, max_error, size, options.splits) for max_error, size in asked]
        results.append({"task": name, "documents": len(wrong), "wrong": float(wrong.mean()), "rows": rows})
        print(table(results[-1:]), flush=True)
    versions = {package.__name__: package.__version__ for package in (scipy, sklearn, foretoken)}
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "splits": options.splits, "versions": versions}
    write_json(options.output.with_suffix(".json"), facts | {"confidence": CONFIDENCE, "results": results})


if __name__ == "__main__":
    main()
