"""Questions that find the sentence which answers them: frozen MiniLM, and adapters of the queries alone, on QNLI.

    FORETOKEN_DATA=... python benchmarks/retrieval.py [--rows N] [--steps 40] [--rates 0.1 0.3] [--seed 0]

The question-sentence pairs of QNLI's labelled part (dev.tsv) whose sentence answers the question become train,
validation and test, the questions of one sentence together. Every question is searched in all sentences of that file,
those that answer no question among them. The adapter is for queries alone, so the sentences are embedded once. Of each
method's rates (shares of its default) the one with the best nDCG@10 on validation is shown; its test is looked at once.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from foretoken import tune_malloc
from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.files import write_json
from foretoken.inference.predictor import Predictor, load_for_inference
from foretoken.inference.retrieval import embed
from foretoken.methods import default_rates
from foretoken.metrics.retrieval import per_query, retrieval_metrics
from foretoken.metrics.statistics import paired_bootstrap
from foretoken.training.problems.retrieval import Vectors, ranked
from foretoken.training.recipe.recipe import build_recipe
from foretoken.training.run.intervals import bootstrap_intervals
from foretoken.training.run.train import train

OUTPUT = Path(__file__).parent / "results" / "retrieval.json"
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


def one_run(data: dict[str, Any], method: str, rate: float, steps: int, seed: int, output: str) -> Path:
    """Train an adapter of the queries, and return the folder of its run."""
    recipe = {
        "model": "minilm",
        "data": data,
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
        "output": output,
        "name": f"{method}-{rate:g}-{seed}",
    }
    train(build_recipe(recipe))
    return Path(output) / str(recipe["name"])


def study(tsv: Path, most: int | None, steps: int, factors: list[float], seed: int) -> dict[str, Any]:
    """Measure the pretrained model and every method."""
    pairs, sentences = pairs_and_sentences(tsv, most, seed)
    numbers = {sentence: number for number, sentence in enumerate(sentences)}
    frozen = load_for_inference("minilm")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.jsonl"
        file.write_text("".join(json.dumps({"query": query, "passage": text}) + "\n" for query, text in pairs))
        data = {"path": str(file), "problem": "retrieval", **_SHARES}
        tables = load_data(DataOptions(**data)).splits
        questions = {split: list(tables[split]["query"]) for split in SPLITS}
        right = {split: [[numbers[text] for text in texts] for texts in tables[split]["passages"]] for split in SPLITS}
        began = time.perf_counter()
        vectors = embed(frozen, sentences, "passage", batch_size=64).vectors
        seconds = {"sentences": round(time.perf_counter() - began, 1)}
        before = {split: rankings(frozen, questions[split], vectors) for split in SPLITS}
        rows = [{"method": "frozen"} | {split: scores(before[split], right[split]) for split in SPLITS}]
        of_frozen = per_query(before["test"], right["test"])["ndcg_at_10"]
        for method in METHODS:
            began, tried = time.perf_counter(), []
            for factor in factors:
                rate = float(f"{factor * default_rates([method])[0]:.2g}")
                run = one_run(data, method, rate, steps, seed, folder)
                found = rankings(load_for_inference(run), questions["validation"], vectors)
                tried.append((retrieval_metrics(found, right["validation"])["ndcg_at_10"], rate, run))
            _, rate, run = max(tried, key=lambda one: one[0])
            predictor = load_for_inference(run)
            found = {split: rankings(predictor, questions[split], vectors) for split in SPLITS}
            gain = paired_bootstrap(per_query(found["test"], right["test"])["ndcg_at_10"], of_frozen)
            record = json.loads((run / "run.json").read_text(encoding="utf-8"))
            row = {"method": method, **METHODS[method], "learning_rate": rate, "parameters": record["parameters"]}
            row |= {"tried": [{"learning_rate": one, "validation_ndcg_at_10": value} for value, one, _ in tried]}
            row |= {split: scores(found[split], right[split]) for split in SPLITS}
            row |= {"ndcg_at_10_beside_frozen": vars(gain), "seconds": round(time.perf_counter() - began, 1)}
            rows.append(row)
            print(f"{method}: {row['test']['metrics']['ndcg_at_10']:.4f}", flush=True)
    documents = {split: len(tables[split]) for split in ("train", *SPLITS)}
    settings = {"steps": steps, "batch_size": 32, "seed": seed, "adapt": "queries", "rates": factors}
    return {"questions": documents, "sentences": len(sentences), "settings": settings, "seconds": seconds, "rows": rows}


def main() -> None:
    """Run the study and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, help="of QNLI, at random; default: all")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3], help="shares of a method's default rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    tune_malloc()
    logging.getLogger("foretoken").setLevel(logging.WARNING)
    tsv = Path(os.environ["FORETOKEN_DATA"]) / "glue" / "QNLI" / "dev.tsv"
    write_json(chosen.output, study(tsv, chosen.rows, chosen.steps, chosen.rates, chosen.seed))


if __name__ == "__main__":
    main()
