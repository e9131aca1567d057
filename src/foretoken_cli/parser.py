"""The parser of every verb: arguments from the fields of a dataclass, and errors in one line."""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from foretoken import left
from foretoken.errors import ConfigError, cut, no_such, quoted
from foretoken.options import out_of_range, types_of
from foretoken_cli.console import say_lines

T = TypeVar("T")
_LARGEST = 10**18


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, where argparse prints two or more. Flags cannot be shortened."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def add_options(self, options: type[Any]) -> None:
        """Add an argument for every field of a dataclass: a positional one if it has no default, else a flag.

        Beside help and limits, the metadata of a field may say: ``positional``, for one that has a default; ``short``,
        another name such as ``-o``, which makes a flag of one that has no default; ``metavar``; ``hidden``, to leave
        it out of the help; ``one_of``, the name of a group of which only one may be given.
        """
        types = types_of(options)
        groups: defaultdict[str, Any] = defaultdict(self.add_mutually_exclusive_group)  # by name
        for item in fields(options):
            group = item.metadata.get("one_of")
            place = groups[group] if group else self
            names, settings = _argument(item, types[item.name])
            place.add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise what `foretoken` prints in one line before it exits with 2."""
        raise ConfigError(f"{self.prog}: {cut(message, 300)}; {self.prog} --help says more")

    def print_help(self, file: object = None) -> None:
        """Print the help on stdout as a result, so that an error of stdout is reported."""
        say_lines(self.format_help())


def parse(options: type[T], verb: str, words: Sequence[str], description: str | None, **settings: Any) -> T:
    """Return the options of a verb from the words of its command line."""
    parser = Parser(prog=f"foretoken {verb}", description=description, **settings)
    parser.add_options(options)
    return collect(options, parser.parse_intermixed_args(words))  # texts may stand behind flags


def parse_known(
    options: type[T], verb: str, words: Sequence[str], description: str | None, **settings: Any
) -> tuple[T, list[str]]:
    """Return the options of a verb, and the words that are not among them."""
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"foretoken {verb}", description=description, formatter_class=style, **settings)
    parser.add_options(options)
    found, rest = parser.parse_known_args(words)
    return collect(options, found), rest


def collect(options: type[T], found: argparse.Namespace) -> T:
    """Return the dataclass of what a parser has found; what was not given keeps its default."""
    given = {name: value for name, value in vars(found).items() if value is not None}
    return options(**{item.name: given[item.name] for item in fields(options) if item.name in given})  # type: ignore[arg-type]


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an argument that takes whole numbers in a range.

    >>> whole(1, 100)("8")
    8
    >>> whole(1, 100)("1e9")
    Traceback (most recent call last):
    ...
    argparse.ArgumentTypeError: got '1e9', expected a whole number from 1 to 100
    """

    def read(text: str) -> int:
        number = int(text) if re.fullmatch("[+-]?[0-9]{1,18}", text.strip()) else None
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"got {quoted(text)}, expected a whole number from {least:,} to {most:,}")
        return number

    return read


def number(limits: Mapping[str, Any]) -> Callable[[str], float]:
    """Return the type of an argument that takes numbers within an option's limits.

    >>> number({"above": 0, "below": 1})("0.05")
    0.05
    >>> number({"above": 0, "below": 1})("5")
    Traceback (most recent call last):
    ...
    argparse.ArgumentTypeError: got 5.0, expected below 1
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"got {quoted(text)}, expected a number")
        for error in out_of_range(value, limits, ""):
            raise argparse.ArgumentTypeError(error.removeprefix(": "))
        return value

    return read


def _argument(item: Field[object], wanted: object) -> tuple[list[str], dict[str, Any]]:
    """Return the names of an argument, and what argparse has to know about it."""
    about = item.metadata
    is_optional = type(None) in get_args(wanted)
    if get_origin(wanted) in (Union, UnionType):
        wanted = next(member for member in get_args(wanted) if member is not type(None))
    settings: dict[str, Any] = {"help": argparse.SUPPRESS if about.get("hidden") else about["help"]}
    many = get_origin(wanted) in (list, tuple)
    kind = get_args(wanted)[0] if many else wanted
    if get_origin(kind) is Literal:
        settings["choices"] = get_args(kind)
        settings["type"] = _choice(item.name, get_args(kind))
    elif kind is int:
        settings["type"] = whole(about.get("at_least", -_LARGEST), about.get("at_most", _LARGEST))
    elif kind is float:
        settings["type"] = number(about)
    elif kind is Path:
        settings["type"] = Path
    if "metavar" in about:
        settings["metavar"] = about["metavar"]
    is_required = item.default is MISSING and item.default_factory is MISSING
    if (is_required and "short" not in about) or about.get("positional"):
        count = "+" if many and is_required else "*" if many else "?"
        optional = {} if is_required else {"default": None}  # or argparse calls a list of none required
        return [item.name], settings | ({"nargs": count} if many or is_optional else {}) | optional
    if kind is bool:
        settings["action"] = argparse.BooleanOptionalAction if is_optional else "store_true"
    elif many:
        settings["action"] = "append"
    elif is_required:
        settings["required"] = True
    elif item.default is not None:
        settings["help"] += f" (default: {item.default})"
    names = [name for name in (about.get("short"), f"--{item.name.replace('_', '-')}") if name]
    return names, settings | {"default": None if many or is_required else item.default, "dest": item.name}


def _choice(name: str, choices: Sequence[str]) -> Callable[[str], str]:
    """Return the type of an argument that takes one of some values; of one that left it says what to use instead."""

    def read(text: str) -> str:
        if text not in choices:
            gone = left.gone(f"{name}: {text}", left.VALUES)
            raise argparse.ArgumentTypeError(f"{quoted(text)} {gone}" if gone else no_such("choice", text, choices))
        return text

    return read
