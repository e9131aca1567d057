"""The models that are measured: published shapes with transformers' own random weights, dropout off."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    LongformerConfig,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from foretoken.methods import make_config
from foretoken.training.model.load import quiet_transformers

PAD, CLS, FIRST_WORD = 1, 0, 3
PREFIX_LENGTH = 8
_PREFIX = re.compile(r"layer\.(\d+)\.foretoken\..*prefix\.weight$")


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    hidden: int
    heads: int
    inner: int
    vocabulary: int
    window: int


SHAPES = {"base": Shape(768, 12, 3072, 50265, 512), "tiny": Shape(32, 2, 64, 211, 16)}


def longformer(
    shape: Shape, *, layers: int, max_length: int, dtype: torch.dtype, device: str, tokens: bool = False
) -> Any:
    """Return a Longformer with a head for documents, or for tokens; the same weights every time."""
    config = LongformerConfig(**_sizes(shape, layers, max_length), attention_window=[shape.window] * layers)
    make = LongformerForTokenClassification if tokens else LongformerForSequenceClassification
    return _made(lambda: make(config), dtype, device)


def roberta(shape: Shape, *, layers: int, max_length: int, dtype: torch.dtype, device: str) -> Any:
    """Return a RoBERTa with a head for documents; the same weights every time."""
    config = RobertaConfig(**_sizes(shape, layers, max_length))
    return _made(lambda: RobertaForSequenceClassification(config), dtype, device)


def _sizes(shape: Shape, layers: int, max_length: int) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "max_position_embeddings": max_length + 2,
        "type_vocab_size": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": PAD,
        "layer_norm_eps": 1e-5,
        "num_labels": 2,
    }


def _made(make: Callable[[], PreTrainedModel], dtype: torch.dtype, device: str) -> PreTrainedModel:
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = make()
    return model.to(device=device, dtype=dtype).train().requires_grad_(False)


def propagated(model: Any, *, tokens: bool = False) -> Any:
    """Return the model with prefix-propagation and a trained head."""
    task = "TOKEN_CLS" if tokens else "SEQ_CLS"
    config = make_config(
        "prefix-propagation", num_virtual_tokens=PREFIX_LENGTH, prefix_dropout=0.0, init_std=0.02, task_type=task
    )
    return get_peft_model(model, config).train()


def prefixes(adapted: nn.Module) -> list[nn.Parameter]:
    """Return P^(l) of all layers, in their order."""
    found = {int(m[1]): p for name, p in adapted.named_parameters() if (m := _PREFIX.search(name))}
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

    @property
    def length(self) -> int:
        """Return P."""
        return self.prefix[0].shape[0]

    def _adder(self, parameter: nn.Parameter) -> Callable[..., Any]:
        def add(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden, *rest = args
            hidden = torch.cat([hidden[:, : self.length] + parameter.to(hidden.dtype), hidden[:, self.length :]], dim=1)
            return (hidden, *rest), kwargs

        return add

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, N) ids and mask -> logits (B, C), or (B, N, C) of a head for tokens."""
        body = self.model.longformer
        text = body.embeddings(input_ids=input_ids)
        codes = self._codes(attention_mask, text)
        rows = text.new_zeros(len(text), self.length, text.shape[-1])
        pad = text.new_zeros(len(text), codes.shape[1] - self.length - text.shape[1], text.shape[-1])
        out = body.encoder(torch.cat([rows, text, pad], dim=1), attention_mask=codes).last_hidden_state
        return self.classifier(out[:, self.length : self.length + text.shape[1]])

    def _codes(self, attention_mask: Tensor, text: Tensor) -> Tensor:
        """Return transformers' mask (B, rows + text + padding): 0, least if masked, largest if global."""
        limits = torch.finfo(text.dtype)
        codes = torch.where(attention_mask.bool(), 0.0, limits.min).to(text.dtype)
        if isinstance(self.model, LongformerForSequenceClassification):
            codes[:, 0] = limits.max
        codes = functional.pad(codes, (self.length, 0), value=limits.max)
        return functional.pad(codes, (0, -codes.shape[1] % self.window), value=limits.min)


def documents(shape: Shape, lengths: list[int], device: str, *, seed: int = 0) -> dict[str, Tensor]:
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


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
