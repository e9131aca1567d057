"""Questions that find the sentence which answers them: frozen MiniLM, and adapters of the queries alone, on QNLI.

    FORETOKEN_DATA=... python benchmarks/retrieval.py [--method NAME ...] [--seed 0 1 2] [--steps 40] [--rates 0.1 0.3]

The question-sentence pairs of QNLI's labelled part (dev.tsv) whose sentence answers the question become train,
validation and test, the questions of one sentence together. Every question is searched in all sentences of that file,
those that answer no question among them. The adapter is for queries alone, so the sentences are embedded once. Of each
method's rates (shares of its default) the one with the best nDCG@10 on validation is shown; its test is looked at once.
Runs that the output holds already are not repeated. The seed is that of training; the splits are the same.
"""

from __future__ import annotations

import csv
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from shared import Json, run_missing, set_up, study_parser

from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.inference.predictor import Predictor, load_for_inference
from foretoken.inference.retrieval import embed
from foretoken.methods import default_rates
from foretoken.metrics.retrieval import per_query, retrieval_metrics
from foretoken.metrics.statistics import paired_bootstrap
from foretoken.training.problems.retrieval import Vectors, ranked
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.intervals import bootstrap_intervals
from foretoken.training.run.train import train

FROZEN = "frozen"
METHODS: dict[str, dict[str, Any]] = {
    "prefix-tuning": {"num_virtual_tokens": 8},
    "prefix-propagation": {"num_virtual_tokens": 8},
    "decoupled-prefix": {"num_virtual_tokens": 8},
    "lora": {"r": 8},
}
SPLITS = ("validation", "test")
_SHARES = {"validation_fraction": 0.12, "test_fraction": 0.4}


def pairs_and_sentences(path: Path, most: int | None, seed: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the pairs of a question and a sentence that answers it, and all sentences, of ``most`` rows at random."""
    with path.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))
    random.Random(seed).shuffle(rows)
    rows = rows[:most]
    pairs = [(row["question"], row["sentence"]) for row in rows if row["label"] == "entailment"]
    return pairs, list(dict.fromkeys(row["sentence"] for row in rows))


def rankings(predictor: Predictor, questions: list[str], sentences: Vectors) -> list[list[int]]:
    """Return the numbers of the sentences that are found for each question."""
    return [one.numbers for one in ranked(embed(predictor, questions, "query").vectors, sentences)]


def scores(found: list[list[int]], right: list[list[int]]) -> dict[str, Any]:
    """Return metrics and their intervals over the questions."""
    return {"metrics": retrieval_metrics(found, right), "intervals": bootstrap_intervals("retrieval", right, found)}


class Study:
    """The questions, the sentences and their vectors, which are the same for all methods and seeds."""

    def __init__(self, tsv: Path, most: int | None, folder: Path) -> None:
        pairs, sentences = pairs_and_sentences(tsv, most, seed=0)
        numbers = {sentence: number for number, sentence in enumerate(sentences)}
        file = folder / "pairs.jsonl"
        file.write_text("".join(json.dumps({"query": query, "passage": text}) + "\n" for query, text in pairs))
        self.folder, self.data = folder, {"path": str(file), "problem": "retrieval", **_SHARES}
        tables = load_data(DataOptions(**self.data)).splits
        self.size = {"sentences": len(sentences), "questions": {split: len(tables[split]) for split in tables}}
        self.questions = {split: list(tables[split]["query"]) for split in SPLITS}
        self.right = {
            split: [[numbers[text] for text in texts] for texts in tables[split]["passages"]] for split in SPLITS
        }
        self.frozen = load_for_inference("minilm")
        self.vectors = embed(self.frozen, sentences, "passage", batch_size=64).vectors
        self.of_frozen = self.gains("test", self.found(self.frozen, "test"))

    def found(self, predictor: Predictor, split: str) -> list[list[int]]:
        """Return the numbers of the sentences that are found for each question of a split."""
        return rankings(predictor, self.questions[split], self.vectors)

    def gains(self, split: str, found: list[list[int]]) -> Sequence[float]:
        """Return the nDCG of each question."""
        return per_query(found, self.right[split])["ndcg_at_10"]

    def one_run(self, method: str, seed: int, steps: int, rates: list[float], rows: int | None) -> Json:
        """Measure the pretrained model, or the best of a method's rates."""
        began = time.perf_counter()
        more: Json = {}
        predictor = self.frozen
        if method != FROZEN:
            tried = []
            for factor in rates:
                rate = float(f"{factor * default_rates([method])[0]:.2g}")
                run = self.trained(method, rate, steps, seed)
                found = self.found(load_for_inference(run), "validation")
                tried.append((retrieval_metrics(found, self.right["validation"])["ndcg_at_10"], rate, run))
            _, rate, run = max(tried, key=lambda one: one[0])
            predictor = load_for_inference(run)
            record = json.loads((run / "run.json").read_text(encoding="utf-8"))
            more = {**METHODS[method], "learning_rate": rate, "parameters": record["parameters"]}
            more["tried"] = [{"learning_rate": one, "validation_ndcg_at_10": value} for value, one, _ in tried]
        found_by = {split: self.found(predictor, split) for split in SPLITS}
        if method != FROZEN:
            gain = paired_bootstrap(self.gains("test", found_by["test"]), self.of_frozen)
            more["ndcg_at_10_beside_frozen"] = vars(gain)
        more |= {split: scores(found_by[split], self.right[split]) for split in SPLITS}
        return more | {"data": self.size, "seconds": round(time.perf_counter() - began, 1)}

    def trained(self, method: str, rate: float, steps: int, seed: int) -> Path:
        """Train an adapter of the queries, and return the folder of its run."""
        recipe = {
            "model": "minilm",
            "data": self.data,
            "method": {"name": method, **METHODS[method]},
            "retrieval": {"adapt": "queries"},
            "training": {
                "learning_rate": rate,
                "max_steps": steps,
                "eval_every": steps,
                "batch_size": 32,
                "eval_batch_size": 64,
                "seed": seed,
                "num_threads": torch.get_num_threads(),
            },
            "output": str(self.folder),
            "name": f"{method}-{rate:g}-{seed}",
        }
        train(build_recipe(recipe))
        return self.folder / str(recipe["name"])


def main() -> None:
    """Run what the output lacks."""
    parser = study_parser(__doc__, "retrieval", seeds=range(3))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, help="of QNLI, at random; default: all")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3], help="shares of a method's default rate")
    chosen = parser.parse_args()
    set_up(chosen.threads)
    tsv = Path(os.environ["FORETOKEN_DATA"]) / "glue" / "QNLI" / "dev.tsv"
    same = {"steps": chosen.steps, "rates": chosen.rates, "rows": chosen.rows}
    wanted = [{"method": FROZEN, "seed": 0, **same}]
    wanted += [{"method": method, "seed": seed, **same} for seed in chosen.seed for method in chosen.method]
    with tempfile.TemporaryDirectory() as folder:
        run_missing(chosen.output, wanted, Study(tsv, chosen.rows, Path(folder)).one_run)


if __name__ == "__main__":
    main()
