"""`foretoken env`: show what the machine has and what will be chosen on it, e.g. for an issue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from foretoken_cli.console import described, say_lines
from foretoken_cli.parser import parse


@dataclass(frozen=True)
class EnvCommand:
    """The command line of `foretoken env`: it takes nothing."""


def run(words: Sequence[str]) -> int:
    """Print the environment as JSON."""
    parse(EnvCommand, "env", words, described(__doc__))
    from foretoken_cli.environment import environment

    say_lines(json.dumps(environment(), indent=1))
    return 0
