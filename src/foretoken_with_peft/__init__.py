"""Imports foretoken where a program imports peft: saved adapters load although the program never heard of foretoken.

``foretoken-with-peft.pth``, beside the installed packages, imports this whenever Python starts; foretoken itself is
imported when peft is looked for.
"""

from __future__ import annotations

import sys


class _BeforePeft:
    """A finder that finds nothing itself: it lets foretoken wait for peft, and goes away."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname != "peft":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        from contextlib import suppress
        from importlib.util import find_spec

        with suppress(ImportError):
            import foretoken  # noqa: F401
        return find_spec(fullname)


sys.meta_path.insert(0, _BeforePeft())  # type: ignore[arg-type]
