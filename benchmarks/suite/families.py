"""The other packed families over documents of many lengths, beside transformers' padded passes.

A forward pass, a training step of prefix-propagation packed and padded, and a step of peft's LoRA, ours and in
transformers' own layers. The models have the shapes of their base versions, but fewer layers, and random weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from peft import LoraConfig
from torch import Tensor, nn

from benchmarks.suite.measure import compare
from benchmarks.suite.models import (
    OURS,
    PREFIX_LENGTH,
    SHAPES,
    THEIRS,
    Batch,
    Candidate,
    Shape,
    adapted,
    documents,
    failure,
    kept,
    largest,
    lognormal,
    model,
)
from benchmarks.suite.runner import Options, Part
from foretoken.attention.attend import PACKING_VARIABLE
from foretoken.methods.table import make_config
from foretoken.tuner.speed import speed_up

SIZE = 16
IGNORED = -100
WRITTEN = 32  # tokens that an encoder-decoder writes
FORWARD, PREFIX, LORA = "forward", "step of prefix-propagation", "step of LoRA"


class Family(NamedTuple):
    """A model of transformers: where LoRA usually goes, its head, how many layers it has here, and longer texts."""

    kind: str
    targets: Sequence[str] = ("query", "value")
    task: str = "SEQ_CLS"
    layers: int = 6
    longer: int = 1


FAMILIES = {
    "bert": Family("bert"),
    "distilbert": Family("distilbert", ("q_lin", "v_lin")),
    "mpnet": Family("mpnet", ("q", "v")),
    "modernbert": Family("modernbert", ("Wqkv",)),
    "deberta-v3": Family("deberta-v2", ("query_proj", "value_proj")),
    "big_bird": Family("big_bird", layers=2, longer=2),
    "led": Family("led", task="SEQ_2_SEQ_LM", layers=2, longer=4),
    "gpt2": Family("gpt2", ("c_attn",)),
    "llama": Family("llama", ("q_proj", "v_proj")),
    "llama, language model": Family("llama", ("q_proj", "v_proj"), "CAUSAL_LM"),
}


def sizes_of(kind: str, shape: Shape) -> dict[str, Any]:
    """Return what the configuration of a kind calls otherwise, or has besides."""
    led: dict[str, Any] = {"d_model": shape.hidden, "encoder_layers": 2, "decoder_layers": 1}
    for side in ("encoder", "decoder"):
        led |= {f"{side}_attention_heads": shape.heads, f"{side}_ffn_dim": shape.inner}
    relative = {"relative_attention": True, "position_buckets": 256, "share_att_key": True}
    return {
        "distilbert": {"hidden_dim": shape.inner},
        "modernbert": {"classifier_pooling": "mean"},
        "deberta-v2": {
            **relative,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
        },
        "led": led | {"attention_window": shape.window},
        "gpt2": {"n_inner": shape.inner},
    }.get(kind, {})


def plan(options: Options) -> list[Part]:
    """Return one part per family."""
    return [
        Part(
            f"{name}, random batches of {SIZE}, {dtype}",
            options.settings(
                family=name,
                layers=options.layers or options.pick(1, FAMILIES[name].layers),
                batches=[drawn(FAMILIES[name], options)],
                dtype=dtype,
                rounds=2,
                seconds=40,
            ),
        )
        for dtype in options.dtype or ["float32"]
        for name in options.pick(("bert", "llama"), FAMILIES)
    ]


def drawn(family: Family, options: Options) -> list[int]:
    """Return the lengths of a batch's documents."""
    median, longest = (options.size(family.longer * tokens) for tokens in (150, 512))
    return lognormal(options.pick(4, SIZE), median=median, sigma=0.8, longest=longest)


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Time forward passes and steps, the candidates of each in turn."""
    family, shape = FAMILIES[settings["family"]], SHAPES[settings["shape"]]
    (lengths,) = settings["batches"]
    plain = model(
        family.kind,
        shape,
        layers=settings["layers"],
        max_length=max(lengths) + PREFIX_LENGTH,
        dtype=settings["dtype"],
        device=settings["device"],
        task=family.task,
        **sizes_of(family.kind, shape),
    ).eval()
    batch = asked(family, documents(shape, lengths, settings["device"]), shape)
    timings, differences = {}, {}
    for mode, models in candidates(family, plain).items():
        outputs: dict[str, Tensor] = {}
        run = answer if mode == FORWARD else step
        calls = {name: kept(outputs, name, one, run, batch) for name, one in models.items()}
        timings[mode] = compare(calls, **settings["effort"])
        theirs, ours = outputs.values()
        differences[f"{OURS}, {mode}"] = {"outputs": largest(ours, theirs)}
    return {
        "timings": timings,
        "padded_per_real": len(lengths) * max(lengths) / sum(lengths),
        "differences": differences,
        "failed": failure(differences, settings["dtype"]),
    }


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


def candidates(family: Family, plain: Any) -> dict[str, dict[str, Candidate]]:
    """Return the models that take turns, transformers' or the padded one first; all have the same weights."""
    sizes = {"num_virtual_tokens": PREFIX_LENGTH, "prefix_dropout": 0.0}
    prefixed = adapted(copy.deepcopy(plain), make_config("prefix-propagation", task_type=family.task, **sizes)).eval()
    lora = partial(LoraConfig, task_type=family.task, target_modules=list(family.targets))
    trained = [adapted(copy.deepcopy(plain), lora()).eval() for _ in range(2)]
    packed, padded = {PACKING_VARIABLE: "1"}, {PACKING_VARIABLE: "0"}
    return {
        FORWARD: {THEIRS: Candidate(plain), OURS: Candidate(speed_up(copy.deepcopy(plain)), packed)},
        PREFIX: {"foretoken, unpacked": Candidate(prefixed, padded), OURS: Candidate(prefixed, packed)},
        LORA: {THEIRS: Candidate(trained[0]), OURS: Candidate(speed_up(trained[1]), packed)},
    }


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
