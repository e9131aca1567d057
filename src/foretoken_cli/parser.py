"""The parser of every verb, and the kinds of numbers that its options take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from foretoken.errors import ConfigError, cut, quoted
from foretoken_cli.console import say_lines


class Parser(argparse.ArgumentParser):
    """argparse says an error in two lines or more; here it is one, as everywhere. No option may be shortened."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise what `foretoken` says in one line before it exits with 2."""
        raise ConfigError(f"{self.prog}: {cut(message, 300)}; {self.prog} --help says more")

    def print_help(self, file: Any = None) -> None:
        """Print the help on stdout as a result: argparse does not mind whether it can be written."""
        say_lines(self.format_help())


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option that takes whole numbers in a range.

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
