"""Copies of a model, made once and copied often: in a tenth of the time that transformers takes to make one."""

import copy
import io
import pickle
from collections.abc import Callable

import torch
from torch import nn


def copies_of(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that returns what ``make()`` does: the model, and torch's random numbers that come next."""
    model = make()
    tensors: list[torch.Tensor] = []
    written = io.BytesIO()
    _Writer(written, tensors).dump(model)
    structure, random_state = written.getvalue(), torch.default_generator.get_state()

    def copied() -> nn.Module:
        torch.default_generator.set_state(random_state)
        return _Reader(io.BytesIO(structure), copy.deepcopy(tensors)).load()

    return copied


class _Writer(pickle.Pickler):
    """Keeps tensors out of what it writes: pickling them takes longer than copying them."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors
        self.places: dict[int, int] = {}

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) not in self.places:
            self.places[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self.places[id(value)]


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, place: int) -> torch.Tensor:
        return self.tensors[place]
