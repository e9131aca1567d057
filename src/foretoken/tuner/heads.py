"""Another head on an encoder for classification: what it reads of a document, and how large it is.

Shapes: B documents, S rows, N tokens, D model width, F numbers that are pooled of a document, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from peft import PeftModel
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn

from foretoken.backbones import find_backbone
from foretoken.backbones.pooling import ATTENTION, POOLING, POOLS, Pooling, features, of_documents, reduced
from foretoken.errors import AdapterError, ConfigError, no_such
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.sites import Sites
from foretoken.tuner.forward.call_through import ThroughHooks
from foretoken.tuner.forward.dimensions import body_of, inner_of
from foretoken.tuner.model_hooks import find_model_hooks

Model = TypeVar("Model", bound=nn.Module)
CLASSIFIER = "classifier"  # peft trains it in full by this name
HEAD_KEY = "foretoken_head"  # of a model's config: saved with a model that is trained whole


class Head(nn.Module):
    """From what is pooled of each document to its logits: (B, F) -> (B, C).

    The last linear map is called after the pool, so that an adapter's file never fits a model with another one.
    """

    def __init__(self, width: int, num_labels: int, *, pool: str, hidden: bool, dropout: float) -> None:
        super().__init__()
        self.width = features(pool, width)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(self.width, width) if hidden else None
        self.last = pool
        self.add_module(pool, nn.Linear(width if hidden else self.width, num_labels))

    @property
    def linear(self) -> nn.Linear | None:
        """The map from what is pooled to the logits, where there is no layer between them."""
        return self.get_submodule(self.last) if self.dense is None else None  # type: ignore[return-value]

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, 1, F) or (B, F), or the two halves of :class:`BothSigns` -> (B, C).

        Raises:
            AdapterError: there are the states of all tokens, as somebody else has called the body.
        """
        if pooled.dim() == 3:
            if pooled.shape[1] != 1:
                raise AdapterError(
                    f"the head reads one pooled state of each document, got {tuple(pooled.shape)}; "
                    "call the model, not its body (peft's own prompt learning calls the body)"
                )
            pooled = pooled[:, 0]
        if pooled.shape[-1] == 2 * self.width:
            positive, negative = pooled.relu().split(self.width, dim=-1)
            pooled = positive - negative
        last = self.get_submodule(self.last)
        x = self.dropout(pooled.to(next(last.parameters()).dtype))
        if self.dense is not None:
            x = self.dropout(torch.tanh(self.dense(x)))
        return last(x)


class TokenScores(nn.Module):
    """The score of each token for the pool ``attention``: ``h w / sqrt(D)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, states: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, 1)."""
        # not as a product of matrices, whose last bit depends on where in memory the states lie
        return (states * self.weight).sum(dim=-1, keepdim=True) / math.sqrt(states.shape[-1])


class BothSigns(nn.Module):
    """In the place of a layer before the classifier: passes its input on as (x, -x), for ``x = relu(x) - relu(-x)``.

    DistilBERT rectifies what leaves that layer, which takes nothing away from the two together.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., 2 D)."""
        return torch.cat([x, -x], dim=-1)


def replace_head(model: Model, *, pool: str = "mean", hidden: bool = False) -> Model:
    """Give an encoder for sequence classification (or regression) another head, in place, and return the model.

    Call it before ``get_peft_model``, which finds the head, trains it in full and saves it beside the adapter. A fresh
    model takes the head when it loads the adapter (of peft's own methods, such as LoRA: call it again before
    ``PeftModel.from_pretrained``, with the same arguments). Padding changes no pool.

    Args:
        model: of an encoder family, e.g. from ``AutoModelForSequenceClassification``.
        pool: what the head reads: ``first`` (the first token), ``mean`` or ``max`` (over the tokens), ``mean-max-std``
            (these two and the standard deviation), ``unit-mean-max-std`` (each of these divided by its length),
            ``attention`` (their mean by the weights ``softmax(h w / sqrt(D))`` with a trained vector w), ``prefix``
            (the first row of the prefix, for methods that put one in front of the text). Of a document in several
            rows, see :func:`foretoken.document_logits`, it reads all.
        hidden: a linear layer with tanh and dropout before the last one, as in RoBERTa's own head.

    Raises:
        ConfigError: no such pool, another kind of model, or one that has an adapter or such a head already.
        BackboneError: the family is not supported.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = replace_head(BertForSequenceClassification(config), pool="mean")
    >>> {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if "classifier" in name}
    {'classifier.mean.weight': (2, 8), 'classifier.mean.bias': (2,)}
    """
    check_replaceable(model, pool)
    config: Any = model.config
    body, backbone = body_of(model), find_backbone(model)
    names = backbone.head_names(model, body)
    like, dropout = next(model.get_submodule(CLASSIFIER).parameters()), head_dropout(model, body)
    width = backbone.dimensions(config)["hidden_size"]
    backbone.read_one_state(model)
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Dropout):  # the new head has its own
            setattr(model, name, nn.Identity())
        elif name in names:
            setattr(model, name, BothSigns())
    if "pooler" in names and getattr(body, "pooler", None) is not None:
        body.pooler = nn.Identity()
    made = Head(width, config.num_labels, pool=pool, hidden=hidden, dropout=dropout)
    setattr(model, CLASSIFIER, initialised(made, model).to(like).train(model.training))
    if pool == "attention":
        body.add_module(ATTENTION, initialised(TokenScores(width), model).to(like))
    Pooling(model, body, pool)
    ThroughHooks(model)  # a call that passed the hooks by would pool nothing
    setattr(config, HEAD_KEY, {"pool": pool, "hidden": hidden})
    return model


def check_replaceable(model: nn.Module, pool: str) -> None:
    """Raise ConfigError where :func:`replace_head` cannot be."""
    if pool not in POOLS:
        raise ConfigError(f"pool: {no_such('pool', pool, POOLS)}")
    wrapped = any(isinstance(module, PeftModel | ModulesToSaveWrapper) for module in model.modules())
    if wrapped or find_model_hooks(model) is not None:
        raise ConfigError("the model has an adapter already; replace its head before get_peft_model")
    stacks = find_backbone(model).stacks_of(body_of(model))
    if not type(model).__name__.endswith("ForSequenceClassification") or len(stacks) > 1 or stacks[0].is_causal:
        raise ConfigError(
            f"a {type(model).__name__} keeps its own head; expected an encoder for sequence classification, "
            "e.g. BertForSequenceClassification"
        )
    if head_of(model) is not None:
        raise ConfigError("the head of this model has been replaced already; load the model again")


def head_dropout(model: nn.Module, body: nn.Module) -> float:
    """Return the dropout of the model's own head: that of its last dropout outside of the body."""
    parts = (module for child in model.children() if child is not body for module in child.modules())
    return ([module.p for module in parts if isinstance(module, nn.Dropout)] or [0.0])[-1]


def initialised(module: nn.Module, model: nn.Module) -> nn.Module:
    """Draw the weights as transformers draws those of new heads."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=getattr(model.config, "initializer_range", 0.02))
        else:
            nn.init.zeros_(parameter)
    return module


def head_of(model: nn.Module) -> dict[str, str | bool] | None:
    """Return the choices that a model's head was replaced with; None for transformers' own."""
    if POOLING.get(body_of(model)) is None:
        return None
    return dict(getattr(model.config, HEAD_KEY))


def document_logits(model: nn.Module, inputs: Mapping[str, Any], owner: Tensor, *, rows: int | None = None) -> Tensor:
    """Return the logits (B, C) of documents that are read in several rows: chunks, one after the other.

    A head of :func:`replace_head` reads what is pooled of all rows of a document. Of a head of transformers' own, which
    reads one row, the logits are averaged.

    Args:
        model: with or without an adapter.
        inputs: what it reads, (S, N) each.
        owner: (S,) the number of the document of each row, from 0, in order.
        rows: that are run at once, where nothing is trained; None: all.
    """
    pooling = POOLING.get(body_of(inner_of(model)))
    size = len(owner) if rows is None or torch.is_grad_enabled() else rows
    if pooling is None:
        logits = torch.cat([model(**part).logits for part in row_slices(inputs, size)])
        return mean_of_rows(logits, owner.to(logits.device))
    if size >= len(owner):
        with pooling.reading(owner):
            return model(**inputs).logits
    found = [row_summaries(model, part) for part in row_slices(inputs, size)]
    return logits_of_summaries(model, torch.cat(found), owner)


def pool_of(model: nn.Module) -> str | None:
    """Return what the head reads of a document; None where it is transformers' own."""
    pooling = POOLING.get(body_of(inner_of(model)))
    return None if pooling is None else pooling.pool


def row_summaries(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return what the pool keeps of each row, (S, K), from which that of documents in several rows follows."""
    summaries = logits_and_summaries(model, inputs)[1]
    assert summaries is not None
    return summaries


def logits_and_summaries(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the logits of each row, (S, C), and what the pool keeps of it, (S, K); None of transformers' own heads."""
    pooling = POOLING.get(body_of(inner_of(model)))
    if pooling is None:
        return model(**inputs).logits, None
    with pooling.reading(None, kept=True):
        return model(**inputs).logits, pooling.summary


def logits_of_summaries(model: nn.Module, summaries: Tensor, owner: Tensor) -> Tensor:
    """Return the logits of documents, given what was kept of their rows: (S, K), (S,) -> (B, C)."""
    head = inner_of(model).get_submodule(CLASSIFIER)
    device = next(head.parameters()).device
    logits: Tensor = head(of_documents(str(pool_of(model)), summaries.to(device), owner))
    return logits


def pooled_features(model: nn.Module, inputs: Mapping[str, Any], owner: Tensor | None, *, rows: int) -> Tensor:
    """Return what the head reads of each document, (B, F)."""
    found = torch.cat([row_summaries(model, part) for part in row_slices(inputs, rows)])
    return of_documents(str(pool_of(model)), found, owner)


def linear_head(model: nn.Module) -> nn.Linear | None:
    """Return the map from what is pooled of a document to its logits; None where the head is another."""
    head = own_head(model)
    return None if head is None else head.linear


def own_head(model: nn.Module) -> Head | None:
    """Return the head that :func:`replace_head` made, as it is active; None where it is transformers' own."""
    head = getattr(inner_of(model), CLASSIFIER, None)
    if isinstance(head, ModulesToSaveWrapper):
        adapted = head.active_adapters and not head.disable_adapters
        head = head.modules_to_save[head.active_adapters[0]] if adapted else head.original_module
    return head if isinstance(head, Head) else None


def mean_of_rows(logits: Tensor, owner: Tensor) -> Tensor:
    """Return the mean over each document's rows: (S, C), (S,) -> (B, C).

    >>> mean_of_rows(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1])).tolist()
    [[2.0], [5.0]]
    """
    return reduced(logits, owner, "mean")


def row_slices(inputs: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Yield so many rows of a padded batch at a time, without the padding that they do not need."""
    mask = inputs["attention_mask"]
    for begin in range(0, len(mask), size):
        longest = max(1, int(mask[begin : begin + size].sum(dim=1).max()))
        yield {name: value[begin : begin + size, :longest] for name, value in inputs.items()}


def take_head(config: ForetokenConfig, model: nn.Module) -> None:
    """Give a model the head that a saved adapter was trained with, where it has transformers' own and no adapter.

    Raises:
        AdapterError: the model has another head and keeps it.
    """
    here = head_of(model)
    if config.head == here:
        return
    if config.head is None:
        raise AdapterError("the adapter was trained with transformers' own head; load it on a model that keeps it")
    wanted = ", ".join(f"{name}={value!r}" for name, value in config.head.items())
    try:
        replace_head(model, pool=str(config.head.get("pool")), hidden=bool(config.head.get("hidden")))
    except ConfigError as error:
        raise AdapterError(
            f"the adapter was trained with another head; load it alone on a fresh model, or call "
            f"foretoken.replace_head(model, {wanted}) on the model first ({error})"
        ) from error


def check_prefix(model: nn.Module, sites: Sites | None = None) -> None:
    """Raise ConfigError where the head is to read a prefix, and the adapter puts none in front of the text."""
    pooling = POOLING.get(body_of(model))
    if pooling is None or pooling.pool != "prefix":
        return
    if sites is None or not any(entry.prefix_length for entry in sites.layers.values()):
        raise ConfigError(
            "the head is to read the prefix (pool 'prefix'), and this method puts none in front of the text; choose "
            "another pool, e.g. mean, or a method with a prefix there, e.g. prefix-propagation"
        )
