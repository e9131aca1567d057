"""`mixed`: batches in which every document has an adapter of its own, beside one adapter's batch and one by one.

Each side computes the same documents: a bank of adapters with one adapter in the batch, with several, and with one for
each document; peft with one adapter, in one batch and document by document. Adapters are attached from their folders.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LongformerConfig,
    LongformerForSequenceClassification,
)

from foretoken.bench.candidates import failure, largest
from foretoken.bench.measure import Effort, compare
from foretoken.bench.models import SHAPES
from foretoken.bench.run.plan import Options, Part
from foretoken.methods import make_config
from foretoken.tuner.bank.bank import AdapterBank
from foretoken.tuner.checkpoints.files import TENSORS

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "prefix-propagation": ("prefix-propagation", {"num_virtual_tokens": 8}),
    "prefix-tuning": ("prefix-tuning", {"num_virtual_tokens": 8}),
    "prefix-tuning, P = 16": ("prefix-tuning", {"num_virtual_tokens": 16}),
    "decoupled-prefix": ("decoupled-prefix", {"num_virtual_tokens": 8}),
    "lora": ("lora", {"r": 8}),
}
BLEND = "blend"
FAMILIES: dict[str, dict[str, Any]] = {
    "minilm": {"documents": 100, "adapters": (8, 64, 100), "lengths": (32, 64), "layers": 6, "methods": 5},
    "longformer": {"documents": 8, "adapters": (8,), "lengths": (512, 1024), "layers": 4, "methods": 3},
}
ONE, PEFT, SINGLY = "bank, 1 adapter", "peft, 1 adapter", "peft, one by one"


def plan(options: Options) -> list[Part]:
    """Return one part per model and method; the blend has several methods in one batch."""
    return [
        Part(
            "mixed",
            f"{family}, {method}",
            settings=options.settings(
                family=family,
                method=method,
                layers=options.layers or (2 if options.quick else numbers["layers"]),
                documents=8 if options.quick else numbers["documents"],
                adapters=[4, 8] if options.quick else list(numbers["adapters"]),
                lengths=[max(4, options.size(length)) for length in numbers["lengths"]],
                effort=options.effort(rounds=5, seconds=120),
            ),
        )
        for family, numbers in FAMILIES.items()
        for method in [
            "prefix-tuning" if options.quick else name
            for name in list(METHODS)[: 1 if options.quick else numbers["methods"]]
        ]
        + [BLEND]
        if method != "prefix-tuning, P = 16"
    ]


def measure(part: Part, notify: Callable[[str], object]) -> dict[str, Any]:
    """Attach the adapters, and time the batches in turn."""
    settings = part.settings
    batch = documents(settings)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        folders = saved_adapters(settings, Path(folder))
        bank = AdapterBank(new_model(settings))
        attached, clock = [], time.process_time()
        for number, own in enumerate(folders):
            start = time.perf_counter()
            bank.add(f"a{number}", own)
            attached.append(time.perf_counter() - start)
        clock = time.process_time() - clock
        single = PeftModel.from_pretrained(new_model(settings), str(folders[0])).eval()
    size = settings["documents"]
    kinds = kinds_of(settings["method"])
    counts = {f"bank, {count} adapters": count for count in settings["adapters"]}
    candidates: dict[str, Callable[[], Any]] = {
        PEFT: partial(in_one, single, batch),
        ONE: partial(in_bank, bank, batch, ["a0"] * size),
        **{
            name: partial(in_bank, bank, batch, [f"a{number % count}" for number in range(size)])
            for name, count in counts.items()
        },
        SINGLY: partial(one_by_one, single, batch),
    }
    whole = f"bank, {kinds} adapters" if kinds > 1 else ONE
    if kinds > 1:  # one adapter of each method: the batch that a blend of more of them is compared with
        candidates[whole] = partial(in_bank, bank, batch, [f"a{number % kinds}" for number in range(size)])
    differences = {ONE: {"outputs": largest(candidates[ONE](), candidates[SINGLY]())}}
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    clocked = {name: partial(with_clock, call, spent[name]) for name, call in candidates.items()}
    timings = compare(clocked, effort=Effort(**settings["effort"]), notify=notify)
    return {
        "processor_seconds": {name: statistics.median(seconds[1:]) for name, seconds in spent.items()},
        "attached": attached,
        "attached_processor_seconds": clock,
        "beside": whole,
        "differences": differences,
        "failed": failure(differences),
        "timings": {name: timing.as_dict() for name, timing in timings.items()},
    }


def with_clock(call: Callable[[], object], spent: list[float]) -> None:
    """Call, and note the processor time of this process: other processes change it less than the time on the wall."""
    start = time.process_time()
    call()
    spent.append(time.process_time() - start)


def kinds_of(method: str) -> int:
    """Return how many methods there are in a batch."""
    return len(METHODS) if method == BLEND else 1


def new_model(settings: Mapping[str, Any]) -> Any:
    """Return a model with the same random weights each time."""
    torch.manual_seed(0)
    shape, longest = SHAPES[settings["shape"]], max(settings["lengths"])
    sizes = {"num_hidden_layers": settings["layers"], "num_labels": 2}
    if settings["family"] == "minilm":
        if settings["shape"] == "base":
            sizes |= {"hidden_size": 384, "intermediate_size": 1536, "vocab_size": 30522}
        else:
            sizes |= {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "vocab_size": shape.vocabulary,
            }
        return BertForSequenceClassification(BertConfig(**sizes)).eval()
    sizes |= {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "attention_window": [shape.window] * settings["layers"],
        "max_position_embeddings": longest + 2,
        "pad_token_id": 1,
    }
    return LongformerForSequenceClassification(LongformerConfig(**sizes)).eval()


def documents(settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a padded batch of documents whose lengths lie between two."""
    generator = torch.Generator().manual_seed(0)
    (least, most), size = settings["lengths"], settings["documents"]
    lengths = torch.randint(least, most + 1, (size, 1), generator=generator)
    mask = (torch.arange(int(lengths.max())) < lengths).long()
    ids = torch.randint(5, SHAPES[settings["shape"]].vocabulary // 2, mask.shape, generator=generator)
    return {"input_ids": ids.where(mask.bool(), 1), "attention_mask": mask}


def saved_adapters(settings: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the folders of as many random adapters as there are documents in a batch."""
    names = list(METHODS) if settings["method"] == BLEND else [settings["method"]]
    made = []
    for number, name in enumerate(names):
        method, options = METHODS[name]
        if method == "lora":
            heads = ["classifier", "pooler"] if settings["family"] == "minilm" else ["classifier"]
            options = {**options, "target_modules": ["query", "value"], "modules_to_save": heads}
        config: Any = (
            LoraConfig(task_type="SEQ_CLS", **options)
            if method == "lora"
            else make_config(method, task_type="SEQ_CLS", **options)
        )
        model = get_peft_model(new_model(settings), config)
        model.save_pretrained(str(folder / f"kind{number}"))
        made.append((folder / f"kind{number}", get_peft_model_state_dict(model)))
    folders = []
    for number in range(settings["documents"]):
        kind, state = made[number % len(made)]
        own = folder / f"a{number}"
        own.mkdir()
        (own / "adapter_config.json").write_bytes((kind / "adapter_config.json").read_bytes())
        torch.manual_seed(number)
        save_file({key: value + 0.02 * torch.randn(value.shape) for key, value in state.items()}, own / TENSORS)
        folders.append(own)
    return folders


@torch.no_grad()
def in_bank(bank: AdapterBank, batch: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return the logits of a batch whose documents name their adapters."""
    return torch.stack(bank(**batch, adapter_names=names).logits)


@torch.no_grad()
def in_one(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of a batch by one adapter."""
    logits: Tensor = model(**batch).logits
    return logits


@torch.no_grad()
def one_by_one(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the documents, each by itself and without padding."""
    found = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        length = int(mask.sum())
        found.append(in_one(model, {"input_ids": ids[None, :length], "attention_mask": mask[None, :length]}))
    return torch.cat(found)
