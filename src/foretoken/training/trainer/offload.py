"""Saved activations in CPU memory between the forward and the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu


class OffloadedActivations(save_on_cpu):
    """``save_on_cpu`` for what a forward pass saves, except the model's own parameters: these stay in any case.

    transformers offloads what checkpoints keep, and that alone; around the whole forward pass it is the same with
    checkpoints, and all activations without them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(pin_memory=torch.cuda.is_available())
        self.parameters = {_storage(parameter) for parameter in model.parameters()}
        self.pack, self.unpack = self.pack_hook, self.unpack_hook
        self.pack_hook, self.unpack_hook = self._pack, self._unpack

    def _pack(self, tensor: Tensor) -> Any:
        return tensor if _storage(tensor) in self.parameters else self.pack(tensor)

    def _unpack(self, held: Any) -> Tensor:
        return held if isinstance(held, Tensor) else self.unpack(held)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
