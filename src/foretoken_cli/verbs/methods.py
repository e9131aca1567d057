"""`foretoken methods`: list the methods, or the options of one."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.errors import ConfigError, no_such
from foretoken.options import option
from foretoken_cli.console import described, say, say_lines, table
from foretoken_cli.parser import parse

if TYPE_CHECKING:
    from foretoken.files import JsonObject

FILE = Path(__file__).parents[1] / "method_list.json"  # docs/generate.py writes it


@dataclass(frozen=True)
class MethodsCommand:
    """The command line of `foretoken methods`."""

    name: str | None = option("show the options of this method", None, positional=True)


def run(words: Sequence[str]) -> int:
    """Print the methods and the families they work on, or the options of the one that is named."""
    options = parse(MethodsCommand, "methods", words, described(__doc__))
    known: JsonObject = json.loads(FILE.read_text(encoding="utf-8"))
    if options.name is None:
        table(("method", "what it trains", "rate", "paper"), known["methods"])
        say()
        _print_support(known["support"])
        return 0
    if options.name not in known["options"]:
        raise ConfigError(no_such("method", options.name, known["options"]))
    rows = known["options"][options.name]
    if rows:
        table(("option", "default", "meaning"), rows)
    else:
        say(f"{options.name} has no options")
    return 0


def _print_support(cells: Mapping[str, Mapping[str, str]]) -> None:
    """Print which method works on which family, and why not where it does not."""
    families = list(next(iter(cells.values())))
    numbers = {name: str(number) for number, name in enumerate(cells, start=1)}
    rows = [(family, *("-" if cells[name][family] else "+" for name in cells)) for family in families]
    table(("family (model_type)", *numbers.values()), rows)
    paragraphs = ["+ works, - does not; methods: " + ", ".join(f"{number} {name}" for name, number in numbers.items())]
    paragraphs += [f"- {name}: {reason}" for name, reason in sorted(_reasons(cells))]
    for text in paragraphs:
        say_lines(textwrap.fill(text, 79, break_on_hyphens=False))


def _reasons(cells: Mapping[str, Mapping[str, str]]) -> set[tuple[str, str]]:
    """Return why a method cannot be on some families, once for all of them; the table says which."""
    return {
        (name, reason.replace(f"this {family} model", "the model"))
        for name, row in cells.items()
        for family, reason in row.items()
        if reason
    }
