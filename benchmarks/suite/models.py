"""The models that are measured: published shapes with transformers' own random weights, dropout off."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import transformers
from peft import get_peft_model
from torch import Tensor, nn
from torch.nn import functional

from foretoken.methods.table import make_config
from foretoken.quiet import quiet_transformers

OURS, THEIRS, NONE = "foretoken", "transformers", "no adapter"
PAD, CLS, FIRST_WORD = 1, 0, 3
PREFIX_LENGTH = 8
LIMIT = 1e-4  # float32: more apart than this is a defect
_PREFIX = re.compile(r"layer\.(\d+)\.foretoken\..*prefix\.weight$")
HEADS: dict[str, Any] = {
    "SEQ_CLS": transformers.AutoModelForSequenceClassification,
    "TOKEN_CLS": transformers.AutoModelForTokenClassification,
    "CAUSAL_LM": transformers.AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": transformers.AutoModelForSeq2SeqLM,
}
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    window: int


SHAPES = {
    "base": Shape(768, 12, 3072, 50265, 512),
    "minilm": Shape(384, 12, 1536, 30522, 0),
    "tiny": Shape(32, 2, 64, 211, 16),
}


def model(
    kind: str,
    shape: Shape,
    *,
    layers: int,
    max_length: int,
    dtype: str = "float32",
    device: str = "cpu",
    task: str = "SEQ_CLS",
    **sizes: Any,
) -> Any:
    """Return a model of transformers by its ``model_type``, frozen and for training; the same weights every time."""
    common: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "max_position_embeddings": max_length + 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": PAD,
        "num_labels": 2,
        "use_cache": False,  # as transformers' Trainer sets it
    }
    if kind == "longformer":
        common["attention_window"] = [shape.window] * layers
    config = transformers.AutoConfig.for_model(kind, **common | sizes)
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = HEADS[task].from_config(config)
    return made.to(device=device, dtype=getattr(torch, dtype)).train().requires_grad_(False)


def adapted(base: Any, config: Any) -> Any:
    """Return the model with an adapter; the same random numbers every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return get_peft_model(base, config)


def propagated(base: Any, task: str = "SEQ_CLS") -> Any:
    """Return the model with prefix-propagation and a trained head."""
    sizes = {"num_virtual_tokens": PREFIX_LENGTH, "prefix_dropout": 0.0, "init_std": 0.02}
    return adapted(base, make_config("prefix-propagation", task_type=task, **sizes))


def prefixes(model: nn.Module) -> list[nn.Parameter]:
    """Return P^(l) of all layers, in their order."""
    found = {int(m[1]): p for name, p in model.named_parameters() if (m := _PREFIX.search(name))}
    return [found[layer] for layer in sorted(found)]


class TransformersPrefix(nn.Module):
    """Prefix-propagation by hand on transformers' own Longformer: zero rows in front, and P^(l) added before a layer.

    It stands for what a user of transformers would write. The rows are global tokens, the text keeps its positions, and
    the head sees the text alone.
    """

    def __init__(self, model: Any, prefix: Sequence[Tensor]) -> None:
        super().__init__()
        self.model = model
        self.prefix = nn.ParameterList([nn.Parameter(p.detach().clone()) for p in prefix])
        self.window = max(model.config.attention_window)
        self.classifier = model.classifier.requires_grad_(True)
        for layer, parameter in zip(model.longformer.encoder.layer, self.prefix, strict=True):
            layer.register_forward_pre_hook(self._adder(parameter), with_kwargs=True)

    def _adder(self, parameter: nn.Parameter) -> Callable[..., Any]:
        def add(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden, *rest = args
            rows = len(parameter)
            hidden = torch.cat([hidden[:, :rows] + parameter.to(hidden.dtype), hidden[:, rows:]], dim=1)
            return (hidden, *rest), kwargs

        return add

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, N) ids and mask -> logits (B, C), or (B, N, C) of a head for tokens."""
        body, rows = self.model.longformer, len(self.prefix[0])
        text = body.embeddings(input_ids=input_ids)
        limits = torch.finfo(text.dtype)  # transformers' mask: 0, least if masked, largest if global
        codes = torch.where(attention_mask.bool(), 0.0, limits.min).to(text.dtype)
        if isinstance(self.model, transformers.LongformerForSequenceClassification):
            codes[:, 0] = limits.max
        codes = functional.pad(codes, (rows, 0), value=limits.max)
        codes = functional.pad(codes, (0, -codes.shape[1] % self.window), value=limits.min)
        around = functional.pad(text, (0, 0, rows, codes.shape[1] - rows - text.shape[1]))
        out = body.encoder(around, attention_mask=codes).last_hidden_state
        return self.classifier(out[:, rows : rows + text.shape[1]])


def lognormal(count: int, *, median: float, sigma: float, longest: int) -> list[int]:
    """Return lengths of documents as they are found; the same every time."""
    drawn = np.random.default_rng(0).lognormal(math.log(median), sigma, count).astype(int) + 2
    return np.minimum(drawn, longest).tolist()


def documents(shape: Shape, lengths: Sequence[int], device: str = "cpu", *, seed: int = 0) -> Batch:
    """Return random documents, padded to the longest: ids and mask (B, N)."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(lengths), max(lengths))
    ids = torch.randint(FIRST_WORD, shape.vocabulary, size, generator=generator)
    ids[:, 0] = CLS
    mask = (torch.arange(size[1])[None] < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids.masked_fill(mask == 0, PAD).to(device), "attention_mask": mask.to(device)}


def logits_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return a model's logits."""
    out = model(**batch)
    return out if isinstance(out, Tensor) else out.logits


def loss_of(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the cross entropy of alternating labels, of documents (B, C) or of real tokens (B, N, C)."""
    if logits.dim() == 3:
        logits = logits[mask.bool()]
    return functional.cross_entropy(logits.float(), torch.arange(len(logits), device=logits.device) % 2)


def step(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Run a training step without its optimiser; return the logits."""
    model.zero_grad(set_to_none=True)
    logits = logits_of(model, batch)
    loss_of(logits, batch["attention_mask"]).backward()
    return logits.detach()


@torch.no_grad()
def predict(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Run a forward pass without gradients; return the logits."""
    return logits_of(model, batch)


class Candidate(NamedTuple):
    """A model, and the variables of the environment that choose its path."""

    module: nn.Module
    variables: Mapping[str, str] = {}


def kept(outputs: dict[str, Tensor], name: str, candidate: Candidate, run: Any, batch: Any) -> Callable[[], None]:
    """Return a call that leaves its logits in ``outputs``."""

    def call() -> None:
        with environment(candidate.variables):
            outputs[name] = run(candidate.module, batch)

    return call


def environment(values: Mapping[str, str]) -> Any:
    """Return a context in which variables of the environment are set."""
    return patch.dict(os.environ, values)


def largest(mine: Tensor, theirs: Tensor) -> float:
    """Return the largest difference of two tensors."""
    return (mine.float() - theirs.float()).abs().max().item()


def failure(differences: Mapping[str, Mapping[str, float]], dtype: str = "float32") -> str | None:
    """Return what is further from transformers in float32 than rounding explains."""
    far = [
        f"{name}: {kind} differ by {value:.1e}"
        for name, kinds in differences.items()
        for kind, value in kinds.items()
        if kind != "gradients_relative" and not value <= LIMIT
    ]
    return f"{'; '.join(far)}; at most {LIMIT:.0e} is rounding" if far and dtype == "float32" else None
