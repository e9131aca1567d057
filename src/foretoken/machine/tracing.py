"""Whether torch.compile, torch.export or torch.jit is tracing the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_state = {"exported": False}


def is_traced() -> bool:
    """Tell whether the model is being traced: then no shape may depend on the values of tensors."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_exported() -> bool:
    """Tell whether the model is being traced into one graph for documents of every length."""
    return _state["exported"]


@contextmanager
def one_graph() -> Iterator[None]:
    """Trace the model inside the block into one graph for documents of every length."""
    _state["exported"] = True
    try:
        yield
    finally:
        _state["exported"] = False
