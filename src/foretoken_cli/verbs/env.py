"""`foretoken env`: show what the machine has and what will be chosen on it, e.g. for an issue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretoken.options import option
from foretoken_cli.console import described, say_lines, table
from foretoken_cli.parser import parse


@dataclass(frozen=True)
class EnvCommand:
    """The command line of `foretoken env`."""

    json: bool = option("print JSON", False)


def run(words: Sequence[str]) -> int:
    """Print the environment as a table or as JSON."""
    options = parse(EnvCommand, "env", words, described(__doc__))
    from foretoken_cli.environment import environment

    values = environment()
    if options.json:
        say_lines(json.dumps(values, indent=1))
    else:
        table(("what", "here"), list(_rows(values)))
    return 0


def _rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the values below each other, those of a group under its name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name} {key}", text) for key, text in _rows(value))
        else:
            yield name if name.isupper() else name.replace("_", " "), _said(value)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value is None else str(value)
