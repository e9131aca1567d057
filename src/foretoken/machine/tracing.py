"""Whether a graph of the model is being made, by torch.compile, torch.export or torch.jit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_state = {"exported": False}


def is_traced() -> bool:
    """Tell whether a graph is being made, which knows no shapes that depend on the documents."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_exported() -> bool:
    """Tell whether the graph that is being made must do for every length, without another one for some of them."""
    return _state["exported"]


@contextmanager
def one_graph() -> Iterator[None]:
    """Let what is traced inside the block make one graph for documents of every length."""
    _state["exported"] = True
    try:
        yield
    finally:
        _state["exported"] = False
