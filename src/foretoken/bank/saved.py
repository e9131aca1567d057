"""Saved adapters, with names of tensors that do not depend on the class of the model that they were trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from torch import Tensor

from foretoken.errors import AdapterError, cut, quoted
from foretoken.files import PathLike
from foretoken.saved_files import readable_object
from foretoken.tuner.adapter_files import TENSORS, find, open_tensors, read_config
from foretoken.tuner.checks import PREFIX, is_finite
from foretoken.tuner.tuner import without_wrapper

CARD = "foretoken.json"  # training writes it beside an adapter


class State(Mapping[str, Tensor]):
    """The tensors of an adapter by their canonical names; their shapes are known before they are read."""

    def __init__(self, names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], read: Any) -> None:
        self.names = names  # canonical -> as in the file
        self.shapes = shapes
        self.read = read

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self.read(self.names[name])
        if not tensor.is_floating_point() or not is_finite(tensor):
            raise AdapterError(f"{cut(name, 150)} does not hold finite numbers; train the adapter again")
        return tensor

    def __iter__(self) -> Any:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class SavedAdapter:
    """An adapter that will be added to a bank.

    Attributes:
        config: its config.
        state: its tensors.
        labels: the names of its outputs; None where they are not known.
        has_words: whether it was trained with TF-IDF beside it.
    """

    config: PeftConfig
    state: State
    labels: tuple[str, ...] | None = None
    has_words: bool = False


def canonical(name: str, body: str) -> str:
    """Return a tensor's name without peft's wrapper, the body's name, and other adapters' LoRA around it.

    >>> canonical("base_model.model.bert.pooler.dense.weight", "bert")
    'pooler.dense.weight'
    """
    return without_wrapper(name.removeprefix(PREFIX).removeprefix(f"{body}."))


def read_adapter(folder: PathLike, body: str) -> SavedAdapter:
    """Read an adapter's folder; its tensors are read when they are needed.

    Raises:
        AdapterError: there is no adapter, or it is a pickle or damaged.
    """
    kind = read_config(folder)["peft_type"]
    config_class = PEFT_TYPE_TO_CONFIG_MAPPING.get(kind)
    if config_class is None:
        raise AdapterError(f"{folder} holds an adapter of type {quoted(kind)}, which neither peft nor foretoken knows")
    opened = open_tensors(find(folder, TENSORS))
    shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 - no mapping
    config = config_class.from_pretrained(str(folder))
    card = readable_object(file) or {} if (file := Path(folder) / CARD).is_file() else {}
    return SavedAdapter(config, state_of(shapes, opened.get_tensor, body), labels_of(card), has_words(card))


def given_adapter(
    config: PeftConfig, state: Mapping[str, Tensor], body: str, labels: tuple[str, ...] | None
) -> SavedAdapter:
    """Return an adapter that is in memory."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return SavedAdapter(config, state_of(shapes, state.__getitem__, body), labels)


def state_of(shapes: Mapping[str, tuple[int, ...]], read: Any, body: str) -> State:
    """Return tensors by their canonical names."""
    names = {canonical(name, body): name for name in shapes}
    if len(names) < len(shapes):
        raise AdapterError("the adapter has one tensor under two names; save it again")
    return State(names, {short: shapes[name] for short, name in names.items()}, read)


def has_words(card: Mapping[str, Any]) -> bool:
    """Tell whether an adapter was trained with TF-IDF of words beside it, by its card."""
    recipe = card.get("recipe")
    return isinstance(recipe, dict) and recipe.get("words") is True


def labels_of(card: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the labels in the card beside an adapter."""
    labels = card.get("labels")
    is_list = isinstance(labels, list) and labels and all(isinstance(label, str) for label in labels)
    return tuple(labels) if is_list else None  # type: ignore[arg-type]
