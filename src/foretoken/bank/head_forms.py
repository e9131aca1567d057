"""The heads of a bank: the heads of its adapters, and the inputs that their classes pass to the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft import PeftConfig
from torch import Tensor, nn

from foretoken.backbones.base import Backbone
from foretoken.bank.heads import CLASSES, GLOBAL, HeadForm, HeadModel, head_in
from foretoken.bank.saved import canonical
from foretoken.errors import AdapterError, quoted
from foretoken.tuner.heads import HEAD_KEY

OTHERS = ("ForMultipleChoice",)


class HeadForms:
    """The forms of heads, by their classes and the shapes of their parameters.

    Args:
        model: the bank's model; adapters without a head use its head.
        config: the model's config.
        backbone: its family.
        has_head: whether the model has a head.
        dtype: the type in which parameters are kept.
    """

    def __init__(
        self, model: nn.Module, config: Any, backbone: Backbone, *, has_head: bool, dtype: torch.dtype
    ) -> None:
        self.model: Any = model
        self.config = config
        self.backbone = backbone
        self.dtype, self.device = dtype, next(model.parameters()).device
        self.prefix = str(self.model.base_model_prefix)
        self.forms: dict[tuple[object, ...], HeadForm] = {}
        self.models: dict[tuple[object, ...], HeadModel] = {}
        self.own: HeadForm | None = None
        if has_head and not type(model).__name__.endswith(OTHERS):
            self.own = self.new(HeadModel(type(model), config, backbone, getattr(config, HEAD_KEY, None)), {})

    def new(self, model: HeadModel, shapes: Mapping[str, tuple[int, ...]]) -> HeadForm:
        """Return heads with parameters of these shapes; the other parameters are those of the model's own head."""
        parameters = self.model.named_parameters(remove_duplicate=False)
        there = {canonical(name, self.prefix): parameter for name, parameter in parameters}
        return HeadForm.of(model, shapes, there, dtype=self.dtype, device=self.device)

    def find(self, config: PeftConfig, shapes: Mapping[str, tuple[int, ...]]) -> HeadForm | None:
        """Return the form of an adapter's head; without a head of its own that of the model, or None.

        Raises:
            AdapterError: the head is of a kind that a bank does not take.
        """
        if not shapes:
            return self.own
        if self.config.is_encoder_decoder:
            raise AdapterError("a bank takes no heads for adapters of an encoder-decoder; save the adapter without one")
        model = self.model_of(config, shapes)
        key = id(model), tuple(sorted(shapes.items()))
        if key not in self.forms:
            self.forms[key] = self.new(model, shapes)
        return self.forms[key]

    def model_of(self, config: PeftConfig, shapes: Mapping[str, tuple[int, ...]]) -> HeadModel:
        """Return a model without a body whose head has these parameters."""
        choices = getattr(config, "head", None) or head_in(shapes)
        task = task_of(config)
        known: Mapping[Any, Any] = CLASSES.get(str(task), {})
        kind = known.get(type(self.config), None) or (type(self.model) if self.own is not None else None)
        if kind is None:
            raise AdapterError(
                f"the adapter has a head, and its task_type is {quoted(task)}; expected {', '.join(CLASSES)}, "
                "one that this family has"
            )
        key = kind, tuple(sorted((choices or {}).items()))
        if key not in self.models:
            self.models[key] = HeadModel(kind, self.config, self.backbone, choices)
        model = self.models[key]
        if unknown := shapes.keys() - model.shapes().keys():
            raise AdapterError(
                f"the adapter has {len(unknown)} tensors that neither its method nor the head of a "
                f"{kind.__name__} has, e.g. {min(unknown)[:150]}"
            )
        return model


def body_inputs(
    heads: Sequence[HeadForm | None], input_ids: Tensor, mask: Tensor, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the inputs, and the further inputs that the heads' classes pass to the body for their documents."""
    extra: dict[str, Tensor] = {}
    left = [True] * len(heads) if GLOBAL not in inputs else (inputs[GLOBAL][:, 0] < 0).tolist()
    for model in dict.fromkeys(head.model for head in heads if head is not None):
        numbers = [n for n, head in enumerate(heads) if left[n] and head is not None and head.model is model]
        if not numbers:
            continue
        for name, value in model.body_inputs(input_ids[numbers], mask[numbers]).items():
            if value.shape[:1] == (len(numbers),):
                whole = extra.setdefault(name, value.new_zeros(len(heads), *value.shape[1:]))
                whole[numbers] = value
    if GLOBAL in inputs:
        whole = extra.get(GLOBAL, torch.zeros_like(inputs[GLOBAL]))
        extra[GLOBAL] = torch.where(inputs[GLOBAL][:, :1] < 0, whole, inputs[GLOBAL])
    return {"input_ids": input_ids, "attention_mask": mask, **inputs, **extra}


def task_of(config: PeftConfig) -> str | None:
    """Return an adapter's task as its file names it."""
    task: str | None = getattr(config.task_type, "value", config.task_type)
    return task
