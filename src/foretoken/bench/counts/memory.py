"""Memory: what a forward pass keeps for its backward pass, and the most that a process holds during a call."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from foretoken.memory import give_back, peak_bytes, reset_peak, resident_bytes


def saved_bytes(forward: Callable[[], Tensor]) -> int:
    """Return the bytes that a graph holds for its backward pass, each storage once.

    It is built twice: what both graphs hold outlives a call (weights, inputs, what is made from them once), and is not
    counted.

    >>> linear = torch.nn.Linear(4, 4)
    >>> saved_bytes(lambda: linear(torch.ones(2, 4)).tanh())  # its input, and what tanh returns
    64
    """
    first, second = dict[int, int](), dict[int, int]()
    held = [graph_of(forward, storages) for storages in (first, second)]  # a freed address would be given out again
    total = sum(size for address, size in second.items() if address not in first)
    del held
    return total


def graph_of(forward: Callable[[], Tensor], storages: dict[int, int]) -> Tensor:
    """Run a forward pass and note the address and size of each storage that its graph holds."""

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return forward()


def peak_of(call: Callable[[], object], device: str) -> dict[str, int | None]:
    """Return the bytes held before a call, and the most held during it, by the process and on its GPU."""
    gc.collect()
    give_back()  # a call that fits into what is free would seem to need nothing
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    on_gpu = torch.cuda.memory_allocated() if device == "cuda" else None
    reset_peak()
    before = resident_bytes()
    call()
    return {
        "before": before,
        "peak": peak_bytes(),
        "cuda_before": on_gpu,
        "cuda_peak": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }
