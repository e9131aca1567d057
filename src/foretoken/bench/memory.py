"""Memory: what a forward pass keeps for its backward pass, and the most that a process holds during a call."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # man proc_pid_clear_refs


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
    _trim()
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


def resident_bytes() -> int | None:
    """Return what the process holds now; the most so far where only that is known."""
    return _status("VmRSS") or peak_bytes()


def peak_bytes() -> int | None:
    """Return the most that the process has held since :func:`reset_peak`, or since it began."""
    known = _status("VmHWM")
    if known is not None or sys.platform == "win32":
        return known
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    """Let the kernel count the most that is held from now on, where it can."""
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def _status(name: str) -> int | None:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _trim() -> None:
    """Give what glibc has free back to the kernel: a call that fits into it would seem to need nothing."""
    with suppress(AttributeError, OSError, TypeError):
        if os.name == "posix":
            ctypes.CDLL(None).malloc_trim(0)
