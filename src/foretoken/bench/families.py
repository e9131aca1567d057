"""`families`: the other packed families over documents of many lengths, beside transformers' padded passes.

A forward pass, a training step of prefix-propagation packed and padded, and a step of peft's LoRA, ours and in
transformers' own layers. The models have the shapes of their base versions, but fewer layers, and random weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from foretoken.attention.choose import PACKING_VARIABLE
from foretoken.bench.candidates import Model, failure, kept, largest
from foretoken.bench.machine import synchronise
from foretoken.bench.measure import Effort, compare, prefixed
from foretoken.bench.models import PREFIX_LENGTH, SHAPES, Shape, documents
from foretoken.bench.names import OURS, THEIRS, UNPACKED
from foretoken.bench.padding import batches
from foretoken.bench.run.plan import Options, Part
from foretoken.methods import make_config
from foretoken.quiet import quiet_transformers
from foretoken.tuner.speed import speed_up

MEDIAN, SIGMA, LONGEST, COUNT, SIZE, SEED = 150, 0.8, 512, 2000, 16, 0
IGNORED = -100
WRITTEN = 32  # tokens that an encoder-decoder writes
FORWARD, PREFIX, LORA = "forward", "step of prefix-propagation", "step of LoRA"
Notify = Callable[[str], object]
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """A model of transformers: its configuration's name, where LoRA usually goes, and the sizes that have other names.

    Attributes:
        kind: ``model_type`` of its configuration.
        targets: the names of the linear maps that LoRA adapts.
        layers: how many it has here.
        longer: how many times longer than others' its documents are.
        task: of peft; it chooses the head.
        sizes: finds further values of the configuration.
    """

    kind: str
    targets: tuple[str, ...] = ("query", "value")
    layers: int = 6
    longer: int = 1
    task: str = "SEQ_CLS"
    sizes: Callable[[Shape], dict[str, Any]] = field(default=lambda shape: {})


def deberta_sizes(shape: Shape) -> dict[str, Any]:
    """Return what makes a DeBERTa v2 a v3: relative positions only, in buckets."""
    return {
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    }


def led_sizes(shape: Shape) -> dict[str, Any]:
    """Return the sizes of an LED whose decoder has one layer."""
    sizes: dict[str, Any] = {"d_model": shape.hidden, "encoder_layers": 2, "decoder_layers": 1}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": shape.heads, f"{side}_ffn_dim": shape.inner}
    return sizes | {"attention_window": shape.window}


FAMILIES = {
    "bert": Family("bert"),
    "distilbert": Family("distilbert", ("q_lin", "v_lin"), sizes=lambda shape: {"hidden_dim": shape.inner}),
    "mpnet": Family("mpnet", ("q", "v")),
    "modernbert": Family("modernbert", ("Wqkv",), sizes=lambda shape: {"classifier_pooling": "mean"}),
    "deberta-v3": Family("deberta-v2", ("query_proj", "value_proj"), sizes=deberta_sizes),
    "big_bird": Family("big_bird", layers=2, longer=2),
    "led": Family("led", layers=2, longer=4, task="SEQ_2_SEQ_LM", sizes=led_sizes),
    "gpt2": Family("gpt2", ("c_attn",), sizes=lambda shape: {"n_inner": shape.inner}),
    "llama": Family("llama", ("q_proj", "v_proj")),
    "llama, language model": Family("llama", ("q_proj", "v_proj"), task="CAUSAL_LM"),
}
QUICK = ("bert", "llama")
HEADS: dict[str, Any] = {
    "SEQ_CLS": transformers.AutoModelForSequenceClassification,
    "CAUSAL_LM": transformers.AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": transformers.AutoModelForSeq2SeqLM,
}


def plan(options: Options) -> list[Part]:
    """Return one part per family."""
    return [
        Part(
            "families",
            f"{name}, random batches of {SIZE}, {dtype}, {allocator} allocator",
            dtype,
            allocator,
            options.settings(
                family=name,
                layers=options.layers or (1 if options.quick else FAMILIES[name].layers),
                batches=drawn(FAMILIES[name], options),
                effort=options.effort(rounds=2, seconds=40),
            ),
        )
        for dtype in options.dtypes_or("float32")
        for allocator in options.allocators_or("tuned")
        for name in (QUICK if options.quick else FAMILIES)
    ]


def drawn(family: Family, options: Options) -> list[list[int]]:
    """Return a batch in random order, as lengths of its documents: lognormal, cut at the longest."""
    median, longest = (options.size(family.longer * tokens) for tokens in (MEDIAN, LONGEST))
    lengths = np.random.default_rng(SEED).lognormal(math.log(median), SIGMA, COUNT).astype(int) + 2
    return batches(np.minimum(lengths, longest).tolist(), "random", 4 if options.quick else SIZE, 1)


def measure(part: Part, notify: Notify) -> dict[str, Any]:
    """Time forward passes and steps, the candidates of each in turn."""
    settings = part.settings
    family, shape = FAMILIES[settings["family"]], SHAPES[settings["shape"]]
    (lengths,) = settings["batches"]
    notify("building the models")
    plain = build(family, shape, settings, getattr(torch, part.dtype))
    batch = asked(family, documents(shape, lengths, settings["device"]), shape)
    timings, outputs = {}, dict[str, dict[str, Tensor]]()
    for mode, models in candidates(family, plain).items():
        outputs[mode] = {}
        run = answer if mode == FORWARD else step
        timings[mode] = {
            name: timing.as_dict()
            for name, timing in compare(
                {name: kept(outputs[mode], name, model, run, batch) for name, model in models.items()},
                effort=Effort(**settings["effort"]),
                synchronise=partial(synchronise, settings["device"]),
                notify=prefixed(notify, mode),
            ).items()
        }
    differences = {
        f"{name}, {mode}": {"outputs": largest(found[name], found[next(iter(found))])}
        for mode, found in outputs.items()
        for name in list(found)[1:]
    }
    return {
        "timings": timings,
        "padded_per_real": len(lengths) * max(lengths) / sum(lengths),
        "differences": differences,
        "failed": failure(differences) if part.dtype == "float32" else None,
    }


def build(family: Family, shape: Shape, settings: dict[str, Any], dtype: torch.dtype) -> Any:
    """Return a family's model; the same weights every time."""
    (lengths,) = settings["batches"]
    sizes: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": settings["layers"],
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max(lengths) + PREFIX_LENGTH + 2,
        "pad_token_id": 1,
        "use_cache": False,  # as transformers' Trainer sets it
    }
    config = transformers.AutoConfig.for_model(family.kind, **sizes | family.sizes(shape))
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return HEADS[family.task].from_config(config).to(device=settings["device"], dtype=dtype).eval()


def asked(family: Family, inputs: Batch, shape: Shape) -> Batch:
    """Return a batch with what the task trains it for, and what an LED needs."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    if family.task == "CAUSAL_LM":
        return inputs | {"labels": ids.masked_fill(mask == 0, IGNORED)}
    if family.task == "SEQ_CLS":
        return inputs | {"labels": torch.zeros_like(ids[:, 0])}
    labels = documents(shape, [WRITTEN] * len(ids), str(ids.device), seed=1)["input_ids"]
    first = torch.zeros_like(mask)
    first[:, 0] = 1
    return inputs | {"labels": labels, "global_attention_mask": first}


def candidates(family: Family, plain: Any) -> dict[str, dict[str, Model]]:
    """Return the models that take turns; all have the same weights, and all adapters too."""
    prefix = make_config(
        "prefix-propagation", num_virtual_tokens=PREFIX_LENGTH, prefix_dropout=0.0, task_type=family.task
    )
    prefixed = adapted(plain, prefix)
    lora = partial(LoraConfig, task_type=family.task, target_modules=list(family.targets))
    packed, padded = {PACKING_VARIABLE: "1"}, {PACKING_VARIABLE: "0"}
    return {
        FORWARD: {THEIRS: Model(plain, {}), OURS: Model(speed_up(copy.deepcopy(plain)), packed)},
        PREFIX: {UNPACKED: Model(prefixed, padded), OURS: Model(prefixed, packed)},
        LORA: {THEIRS: Model(adapted(plain, lora()), {}), OURS: Model(speed_up(adapted(plain, lora())), packed)},
    }


def adapted(plain: Any, config: Any) -> nn.Module:
    """Return a copy of a model with an adapter; the same random numbers every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return get_peft_model(copy.deepcopy(plain), config).eval()


@torch.no_grad()
def answer(model: nn.Module, batch: Batch) -> Tensor:
    """Run a forward pass without gradients; return the documents' logits, or the loss where tokens are written."""
    return shown(model(**batch))


def step(model: nn.Module, batch: Batch) -> Tensor:
    """Run a training step without its optimiser; return what :func:`answer` does."""
    model.zero_grad(set_to_none=True)
    output = model(**batch)
    output.loss.backward()
    return shown(output).detach()


def shown(output: Any) -> Tensor:
    """Return what is compared of a model's output."""
    logits: Tensor = output.logits
    return logits if logits.dim() == 2 else output.loss
