"""Heads without their bodies: the output of a class of transformers for last hidden states, for many adapters at once.

Shapes: b documents, N text tokens, D model width, C labels.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from foretoken.backbones.base import Backbone
from foretoken.backbones.pooling import ATTENTION, POOLING, POOLS, of_documents, summaries
from foretoken.bank.per_document import RowCalls
from foretoken.bank.rows import RowStore, layout_of
from foretoken.bank.saved import canonical
from foretoken.errors import AdapterError, cut
from foretoken.tuner.forward.dimensions import body_of
from foretoken.tuner.forward.rows import RowParameters
from foretoken.tuner.heads import CLASSIFIER, replace_head

ATTENDED, PREFIX = "attention", "prefix"  # the pool that scores tokens, and the pool that reads none
MANY = 7919  # a number of labels that shows which dimensions of a head's parameters are the labels
CLASSES = {
    "SEQ_CLS": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "TOKEN_CLS": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "QUESTION_ANS": MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "CAUSAL_LM": MODEL_FOR_CAUSAL_LM_MAPPING,
    "SEQ_2_SEQ_LM": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
}
ANSWERS = "ForQuestionAnswering"
GLOBAL = "global_attention_mask"
OF_TOKENS = (
    "ForTokenClassification",
    ANSWERS,
    "ForCausalLM",
    "LMHeadModel",
)  # classes with logits of tokens, by ending
NAMES = {"last_hidden_state": 0, "pooler_output": 1}


class BodyCalledError(Exception):
    """Carries the arguments that a model passes to its body."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.given = given


class States(list[Any]):
    """A body's output as far as heads read it: the states and the pooled ones; every other output is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(NAMES[key] if isinstance(key, str) else key)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(NAMES[key] if isinstance(key, str) else key, value)

    def get(self, name: str) -> Any:
        """Return an output by its name, or None."""
        return self[name] if name in NAMES else None


class GivenStates:
    """The ``forward`` method of a body that returns its ``inputs_embeds`` as states.

    Attributes:
        pooler: the module of the body that pools them for the head, or None.
    """

    def __init__(self, pooler: nn.Module | None) -> None:
        self.pooler = pooler

    def __call__(self, *args: Any, **kwargs: Any) -> States:
        """Return the states; without states raise an error with the arguments."""
        states = kwargs.get("inputs_embeds")
        if states is None:
            raise BodyCalledError(kwargs)
        return States([states, None if self.pooler is None else self.pooler(states)])


def head_in(names: Container[str]) -> dict[str, Any] | None:
    """Return the options of a replaced head with tensors of these names, for adapters of peft's own methods.

    >>> head_in({"classifier.mean.weight", "classifier.mean.bias"})
    {'pool': 'mean', 'hidden': False}
    """
    pool = next((pool for pool in POOLS if f"{CLASSIFIER}.{pool}.weight" in names), None)
    return None if pool is None else {"pool": pool, "hidden": f"{CLASSIFIER}.dense.weight" in names}


class HeadModel(nn.Module):
    """A model of transformers without its body: last hidden states -> logits.

    Args:
        kind: the model's class.
        config: the model's config.
        backbone: its family.
        choices: options of :func:`foretoken.replace_head`; None for the class's own head.
    """

    def __init__(
        self, kind: type[nn.Module], config: Any, backbone: Backbone, choices: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        config = copy.deepcopy(config)
        config.num_labels = MANY
        with torch.device("meta"):
            model: Any = kind(config)
            if choices is not None:
                replace_head(model, **choices)
        body = body_of(model)
        self.prefix = model.base_model_prefix
        self.kind = kind.__name__
        is_pooled = self.kind.endswith(backbone.pooled_heads) and "pooler" in body._modules
        for name in [name for name in body._modules if name not in (("pooler",) if is_pooled else ()) + (ATTENTION,)]:
            del body._modules[name]
        for name in list(body._parameters):
            del body._parameters[name]
        body.forward = GivenStates(body._modules.get("pooler"))
        self.model = model.eval()
        self.arguments = inspect.signature(kind.forward).parameters
        self.is_causal = backbone.stacks[0].is_causal
        self.choices = dict(choices or {})
        pool = self.choices.get("pool", "first")
        self.reads_first_token = self.kind.endswith(backbone.first_token_heads or ("nothing",)) and pool == "first"
        self.is_of_tokens = self.kind.endswith(OF_TOKENS)
        self.answers = self.kind.endswith(ANSWERS)
        pooling = POOLING.get(body)
        self.pool = None if pooling is None else pooling.pool

    def names(self) -> dict[str, str]:
        """Return the names of the head's parameters in this module, by their canonical names."""
        names = (name for name, _ in self.named_parameters(remove_duplicate=False))
        return {canonical(name.removeprefix("model."), self.prefix): name for name in names}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters, with :data:`MANY` labels."""
        parameters = dict(self.named_parameters(remove_duplicate=False))
        return {name: tuple(parameters[inner].shape) for name, inner in self.names().items()}

    def num_labels(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """Return C for parameters of these shapes; None where they do not depend on it."""
        for name, expected in self.shapes().items():
            if MANY in expected and name in shapes and len(shapes[name]) == len(expected):
                return shapes[name][expected.index(MANY)]
        return None

    def body_inputs(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return the inputs that the class passes to its body beside tokens and mask: Longformer's global tokens."""
        try:
            self.model(input_ids=input_ids, attention_mask=attention_mask)
        except BodyCalledError as called:
            return {
                name: value
                for name, value in called.given.items()
                if isinstance(value, Tensor) and name not in ("input_ids", "attention_mask")
            }
        return {}

    def summarise(self, states: Tensor, mask: Tensor) -> Tensor:
        """(b, N, D), (b, N) -> (b, K): the pool's summaries of rows; N is 1 for the pool ``prefix``."""
        if self.pool == PREFIX:
            return torch.cat([states[:, 0], torch.ones_like(states[:, 0, :1])], dim=-1)
        body = body_of(self.model)
        scores = body.get_submodule(ATTENTION)(states) if self.pool == ATTENDED else None
        return summaries(str(self.pool), states, mask != 0, scores)

    def of_pooled(self, pooled: Tensor) -> Tensor:
        """(b, F) -> logits (b, C)."""
        logits: Tensor = self.model.get_submodule(CLASSIFIER)(pooled)
        return logits

    def forward(self, states: Tensor, mask: Tensor, input_ids: Tensor) -> Tensor:
        """(b, N, D) -> logits (b, C), or (b, N, C) of tokens; for the start and the end of answers C is 2."""
        if self.pool is not None:
            return self.of_pooled(of_documents(self.pool, self.summarise(states, mask)).to(states.dtype))
        inputs: dict[str, Any] = {"inputs_embeds": states, "attention_mask": mask}
        if self.is_causal and not self.is_of_tokens:
            inputs["input_ids"] = input_ids  # the head finds the last token that is no padding
        if GLOBAL in self.arguments:
            inputs[GLOBAL] = mask
        output = self.model(**inputs, return_dict=True)
        logits: Tensor = (
            torch.stack([output.start_logits, output.end_logits], dim=-1) if self.answers else output.logits
        )
        return logits


@dataclass(eq=False)
class HeadForm:
    """Heads of adapters that differ only in their parameters.

    Attributes:
        model: the model that computes them.
        store: their parameters.
        calls: the calls of ``model`` with these parameters.
        num_labels: C.
    """

    model: HeadModel
    store: RowStore
    calls: RowCalls
    num_labels: int | None

    @classmethod
    def of(
        cls,
        model: HeadModel,
        shapes: Mapping[str, tuple[int, ...]],
        there: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> HeadForm:
        """Return heads with parameters of these shapes; parameters that adapters lack are the model's own.

        Raises:
            AdapterError: a parameter is missing in both, or has another shape.
        """
        names, labels = model.names(), model.num_labels(shapes)
        row_shapes, constants = {}, {}
        for name, expected in model.shapes().items():
            size = tuple(labels if n == MANY and labels is not None else n for n in expected)
            if name in shapes:
                if shapes[name] != size:
                    raise AdapterError(f"{cut(name, 150)} of the adapter's head is {shapes[name]}, expected {size}")
                row_shapes[name] = size
            elif name in there and (tuple(there[name].shape) == expected or MANY in expected):
                constants[names[name]] = there[name]
            else:
                raise AdapterError(f"the adapter's head lacks {cut(name, 150)}, and the model has none; save it again")
        store = RowStore(layout_of(row_shapes), dtype=dtype, device=device)
        layout = {names[name]: place for name, place in store.layout.items()}
        return cls(model, store, RowCalls(model, layout, constants=constants), labels)

    def logits(self, rows: RowParameters, states: Tensor, mask: Tensor, input_ids: Tensor) -> Tensor:
        """(b, N, D) -> (b, C) or (b, N, C)."""
        logits: Tensor = self.calls(rows, "forward", states, mask, input_ids)
        return logits

    def summaries(self, rows: RowParameters, states: Tensor, mask: Tensor) -> Tensor:
        """(b, N, D) -> (b, K), of heads that pool."""
        summaries: Tensor = self.calls(rows, "summarise", states, mask)
        return summaries

    def of_pooled(self, rows: RowParameters, pooled: Tensor) -> Tensor:
        """(B, F) -> (B, C), of heads that pool."""
        logits: Tensor = self.calls(rows, "of_pooled", pooled)
        return logits
