"""float32 by oneDNN in place of MKL: forward passes and steps with a frozen model, the two in turn in one process.

    python -m benchmarks.float32_library [--output benchmarks/results/float32_library] [--rounds 5] [--threads 1 2]

Prefix-propagation and LoRA on models of MiniLM's shapes and of Longformer-base's with four layers, random weights,
without padding as `foretoken train` computes; and a single product. Processors that foretoken does not give to oneDNN
are measured all the same.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor

import foretoken
from benchmarks.suite.machine import hardware
from benchmarks.suite.measure import compare
from foretoken.files import write_json, write_text
from foretoken.machine.products import SWITCH, linear

LIBRARIES = {"MKL": "0", "oneDNN": "1"}
BATCHES = {"minilm": ((64, 17), (32, 128), (8, 512)), "longformer": ((1, 4096),)}  # documents x tokens
PRODUCT = (1024, 384, 1536)


def model(kind: str, method: str) -> Any:
    torch.manual_seed(0)
    if kind == "minilm":
        config: Any = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
        plain: Any = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.LongformerConfig(
            attention_window=512, num_hidden_layers=4, max_position_embeddings=4098, pad_token_id=1
        )
        plain = transformers.LongformerForSequenceClassification(config)
    adapter: Any = LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"])
    if method == "prefix-propagation":
        adapter = foretoken.PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8)
    return foretoken.speed_up(get_peft_model(plain, adapter)).eval()  # no dropout: the two are to be equal


def by(library: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that one library multiplies for."""

    def run() -> Any:
        os.environ[SWITCH] = LIBRARIES[library]
        return call()

    return run


def passes(trained: Any, documents: int, tokens: int, rounds: int) -> dict[str, Any]:
    ids = torch.randint(1000, 20000, (documents, tokens), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.zeros(documents).long()}

    def forward() -> Tensor:
        with torch.no_grad():
            return trained(**inputs).logits

    def step() -> None:
        trained.zero_grad()
        trained(**inputs).loss.backward()

    found: dict[str, Any] = {}
    for name, call in (("forward", forward), ("step", step)):
        found[name] = compare({library: by(library, call) for library in LIBRARIES}, rounds=rounds)
    one, other = (by(library, forward)() for library in LIBRARIES)
    return found | {"logits_differ": float((one - other).abs().max() / one.abs().max())}


def products(rounds: int) -> dict[str, Any]:
    """Return what one product takes in both libraries."""
    rows, inner, outer = PRODUCT
    x, weight, bias = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(outer)
    calls = {library: by(library, lambda: linear(x, weight, bias)) for library in LIBRARIES}
    return {"shape": PRODUCT, "timings": compare(calls, rounds=rounds)}


def measure(threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    found = []
    for kind, batches in BATCHES.items():
        for method in ("prefix-propagation", "lora"):
            trained = model(kind, method)
            for documents, tokens in batches:
                row = {"model": kind, "method": method, "documents": documents, "tokens": tokens}
                found.append(row | passes(trained, documents, tokens, rounds))
    return {"threads": threads, "product": products(rounds), "passes": found}


def table(results: list[dict[str, Any]]) -> str:
    head = ("threads", "model, method", "documents x tokens", "forward", "step", "logits differ")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for result in results:
        for row in result["passes"]:
            times = [[row[name][library]["median"] for library in LIBRARIES] for name in ("forward", "step")]
            cells = [f"{slow:.3f} to {fast:.3f} s, {slow / fast:.2f}x" for slow, fast in times]
            what = f"{row['model']}, {row['method']}", f"{row['documents']} x {row['tokens']}"
            lines.append(f"| {' | '.join((str(result['threads']), *what, *cells))} | {row['logits_differ']:.1e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "float32_library")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    facts = {"date": date.today().isoformat(), "hardware": hardware()}
    versions = {package.__name__: package.__version__ for package in (torch, transformers, foretoken)}
    results = [measure(threads, options.rounds) for threads in options.threads]
    write_json(options.output.with_suffix(".json"), facts | {"versions": versions, "results": results})
    title = f"MKL and oneDNN, {facts['date']}, {hardware().get('cpu')}"
    write_text(options.output.with_suffix(".md"), f"{title}\n\n{table(results)}\n")
    print(table(results))


if __name__ == "__main__":
    main()
