"""Named values on modules of transformers beside their parameters, and the types of hooks' arguments."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from torch import nn

T = TypeVar("T")
Arguments: TypeAlias = tuple[Any, ...]  # positional arguments of a module's forward method, as its hooks get them
Keywords: TypeAlias = dict[str, Any]  # its keyword arguments


class Removable(Protocol):
    """A handle of something that was added to a module."""

    def remove(self) -> None:
        """Remove it."""


class ModuleValue(Generic[T]):
    """A named value on a module; it is copied and pickled with the module, and not part of its state dict.

    It is read from the module's own ``__dict__``: peft's wrappers forward ``getattr`` to the modules inside them, and
    for a missing name ``getattr`` would search parameters, buffers and submodules in every forward pass.

    >>> note = ModuleValue[str]("note")
    >>> layer = nn.Linear(2, 2)
    >>> note.set(layer, "first")
    >>> note.get(layer), note.pop(layer), note.get(layer)
    ('first', 'first', None)
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, module: nn.Module) -> T | None:
        """Return the value, or None for a module without it."""
        return module.__dict__.get(self.name)

    def set(self, module: nn.Module, value: T) -> None:
        """Keep a value on the module."""
        module.__dict__[self.name] = value

    def pop(self, module: nn.Module) -> T | None:
        """Remove the value from the module and return it; None where there is none."""
        return module.__dict__.pop(self.name, None)
