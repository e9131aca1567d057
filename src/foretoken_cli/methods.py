"""`foretoken methods`: list the methods, or the options of one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args, get_origin

from foretoken.errors import ConfigError, did_you_mean, quoted
from foretoken.options import option, types_of
from foretoken_cli.console import described, say, say_lines, table
from foretoken_cli.parser import parse

if TYPE_CHECKING:
    from foretoken.methods import Method


@dataclass(frozen=True)
class MethodsCommand:
    """The command line of `foretoken methods`."""

    name: str | None = option("show the options of this method", None, positional=True)


def run(words: Sequence[str]) -> int:
    """Print the methods and the families they work on, or the options of the one that is named."""
    options = parse(MethodsCommand, "methods", words, described(__doc__))
    from foretoken.methods import METHODS
    from foretoken.training.baseline.options import PAPER, SUMMARY, TF_IDF, TfidfOptions

    if options.name is None:
        rows = [(row.name, row.summary, _rate(row), row.paper) for row in METHODS.values()]
        rows.append((TF_IDF, SUMMARY, "", PAPER))
        table(("method", "what it trains", "rate", "paper"), rows)
        say()
        _print_support()
        return 0
    if options.name == TF_IDF:
        _print_table([(item, types_of(TfidfOptions)[item.name]) for item in fields(TfidfOptions)])
        return 0
    if options.name not in METHODS:
        names = [*METHODS, TF_IDF]
        hint = did_you_mean(options.name, names)
        raise ConfigError(f"no method {quoted(options.name)}{hint}; the methods are {', '.join(names)}")
    _print_options(options.name)
    return 0


def _rate(row: Method) -> str:
    """Return the learning rate that `auto` stands for, and that of a head where it is another."""
    rate = "of members" if row.learning_rate is None else f"{row.learning_rate:g}"
    return rate if row.head_learning_rate is None else f"{rate}, head {row.head_learning_rate:g}"


def _print_options(name: str) -> None:
    from foretoken.training.model.adapter import option_fields, option_types

    known, items = option_types(name), option_fields(name)
    if not items:
        say(f"{name} has no options")
        return
    _print_table([(item, known[item.name]) for item in items])


def _print_table(items: Sequence[tuple[Field[object], object]]) -> None:
    rows = [(item.name, _default(item), _meaning(item, wanted)) for item, wanted in items]
    table(("option", "default", "meaning"), rows)


def _print_support() -> None:
    """Print which method works on which family, and why not where it does not."""
    from foretoken.training.model.support import support

    cells = support()
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


def _meaning(item: Field[object], wanted: object) -> str:
    """Return an option's help, and the values it takes where there are only some."""
    choices = ", ".join(str(value) for value in get_args(wanted)) if get_origin(wanted) is Literal else ""
    text = _first_sentence(item.metadata.get("help", ""))
    return f"{text} [{choices}]" if choices else text


def _first_sentence(text: str) -> str:
    """Shorten the paragraphs of peft's own methods."""
    return re.split(r"(?<=[a-z)`'])\. ", " ".join(text.split()), maxsplit=1)[0]


def _default(item: Field[object]) -> str:
    if item.default is not MISSING:
        return str(item.default)
    return str(item.default_factory()) if item.default_factory is not MISSING else "required"
