"""Something to do once a module is imported: at once where it is already, else as soon as anybody imports it.

foretoken registers its methods with peft so: ``import foretoken`` itself imports neither peft nor torch, which
take seconds, and yet whoever has both foretoken and peft has the methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def call_after_import(module: str, function: Callable[[], object]) -> None:
    """Call a function when a module has been imported, or now where it has been already."""
    if module in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(module, function))


class _Finder(MetaPathFinder):
    """Finds the module as everybody does, once, and puts the call behind its loading."""

    def __init__(self, module: str, function: Callable[[], object]) -> None:
        self.module = module
        self.function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.function)
        return spec


class _Loader(Loader):
    """A loader that calls a function when the module is there."""

    def __init__(self, loader: Loader, function: Callable[[], object]) -> None:
        self.loader = loader
        self.function = function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.function()
