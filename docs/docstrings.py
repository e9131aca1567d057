"""How the reference of Python shows our docstrings: their examples as code, names of classes without Sphinx's roles."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\n|\Z)", re.DOTALL)
ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


class Docstrings(Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Put examples into fences, and take roles away."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = ROLE.sub(r"`\1`", text)
