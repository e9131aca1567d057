"""Time and memory of training on whole documents, by their length: ``python -m benchmarks.long_documents``.

Real text (task ``pydocs``) is joined to documents of so many tokens, half a million in all for each length. One epoch
of LoRA on the upper two layers of MiniLM, whose lower four are kept in advance, runs in a process of its own; its time
is that of the median step, times its steps. Beside it stands the time of the epoch's matrix products alone, with the
same shapes, on the same threads. Writes
``benchmarks/results/long_documents.json``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LENGTHS = (1_000, 4_000, 16_000, 100_000)
TOKENS = 400_000  # of all training documents of a length
RESULTS = Path(__file__).parent / "results" / "long_documents.json"


def documents(length: int) -> list[dict[str, str]]:
    """Return documents of about so many tokens, of two topics."""
    from foretoken.data.tasks.pydocs import documents as pages

    wanted = {"statistics": [], "neural_networks": []}
    for page in pages()["train"]:
        if page.label in wanted:
            wanted[page.label] += page.text.split()
    words, found = int(length / 1.6), []  # 1.6 tokens to a word
    for label, source in wanted.items():
        for number in range(max(4, TOKENS // length // 2 + 2)):
            start = number * 37 % len(source)
            text = (source[start:] + source * (1 + words // len(source)))[:words]
            found.append({"text": " ".join(text), "label": label})
    return found


def epoch(folder: Path, length: int, draws: int | None) -> dict[str, float]:
    """Train twice in this process, first to keep the lower layers, and return what the second run took."""
    from foretoken.memory import keep_few_primitives
    from foretoken.training.recipe.recipe import build_recipe
    from foretoken.training.run.train import train

    keep_few_primitives()  # as the command does
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in documents(length)))
    recipe = {
        "model": "minilm",
        "max_length": 256,
        "data": {"path": str(data), "validation_fraction": 0.1, "test_fraction": 0.1},
        "method": {"name": "lora", "layers": "last-2"},
        "chunks": {"train_at_most": draws},
        "training": {"epochs": 1, "batch_size": 8, "fit_head": False, "metric": "loss"},
        "baselines": False,
        "output": str(folder / "runs"),
    }
    record = train(build_recipe(recipe))
    lengths = record["documents"]["train"]["length_quantiles"]
    tokens = sum(record["documents"][name]["documents"] for name in ("train",)) * sum(lengths) / len(lengths)
    return {
        "documents": record["documents"]["train"]["documents"],
        "tokens": tokens,
        "train_seconds": record["timings"]["step_seconds_median"] * record["steps"],
        "peak_bytes": record["memory"]["rss_peak_bytes"],
    }


def products(tokens: float, rounds: int = 3) -> float:
    """Return the seconds of the matrix products of an epoch: two layers forward, and backward to their inputs."""
    import statistics
    import time

    import torch

    width, inner, rows = 384, 1536, 8192
    x, wide = torch.randn(rows, width), torch.randn(rows, inner)
    square, up, down = torch.randn(width, width), torch.randn(width, inner), torch.randn(inner, width)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(2 * 2):  # layers, directions
            for _ in range(4):
                x @ square
            x @ up
            wide @ down
        times.append(time.perf_counter() - began)
    return statistics.median(times) * tokens / rows


def main() -> None:
    """Measure every length in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--all-chunks", action="store_true", help="train on all chunks of a document in every step")
    options = parser.parse_args()
    draws = None if options.all_chunks else options.draws
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(epoch(Path(folder), options.one, draws)))
        return
    from benchmarks.suite.machine import hardware

    rows = []
    for length in LENGTHS:
        more = ["--all-chunks"] if options.all_chunks else ["--draws", str(options.draws)]
        command = [sys.executable, "-m", "benchmarks.long_documents", "--one", str(length), *more]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        chunks = max(1, round(length / 240))
        read = row["tokens"] * (1 if draws is None else min(1, draws / chunks))
        row |= {"length": length, "read_tokens": read, "product_seconds": products(read)}
        rows.append(row)
        print(
            f"{length:>8,} tokens: {row['documents']} documents, {row['train_seconds']:.1f} s, "
            f"{1e6 * row['train_seconds'] / read:.0f} us a token that is read, "
            f"{row['train_seconds'] / row['product_seconds']:.2f} x the products, {row['peak_bytes'] / 1e6:,.0f} MB",
            flush=True,
        )
    RESULTS.write_text(json.dumps({"machine": hardware(), "draws": draws, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
