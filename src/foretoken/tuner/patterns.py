r"""Regular expressions in an adapter's config, tried before peft matches every module's name against them.

peft reads ``target_modules`` and others as regular expressions, and a config may come from strangers. Python's matcher
takes time exponential in a name's length for some (``(\w+)+!``), and nothing within the process can stop it: it holds
the interpreter's lock. Rules for which expressions are harmless refuse good ones or miss bad ones. So the matching is
done once in a process of its own, which can be killed. Plain names, which nearly all adapters have, need no trial.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from peft import PeftConfig

from foretoken.errors import ConfigError, quoted

SECONDS = 3  # that the trial may take; matching the names of a large model takes milliseconds
PLAIN = re.compile(r"[\w.|-]*")  # nothing that repeats and no groups: matched in one walk over the name
WHOLE = "{}"  # how peft surrounds what is in a config
KEY = "(.*\\.)?({})$"
LAYERS = "(?:^|.*?\\.){}\\.(?P<idx>\\d+)\\."
SAVED = "(^|.*\\.){}($|\\..*)"
STRINGS = {"target_modules": WHOLE, "exclude_modules": WHOLE, "feedforward_modules": WHOLE}  # lists are plain names
LISTS = {"layers_pattern": LAYERS, "modules_to_save": SAVED, "rank_pattern": KEY, "alpha_pattern": KEY}
TRIAL = """
import json, re, sys
names, patterns = json.load(sys.stdin)
for pattern in patterns:
    compiled = re.compile(pattern)
    for name in names:
        compiled.match(name)
        compiled.fullmatch(name)
"""


def check_patterns(config: PeftConfig, names: Sequence[str]) -> None:
    """Try an adapter's regular expressions on the names of a model's modules.

    Raises:
        ConfigError: one is no regular expression, or matching takes too long.
    """
    for option, given, pattern in patterns_of(config):
        if not PLAIN.fullmatch(given) and (problem := tried(pattern, names)) is not None:
            shown = quoted(given, longest=60)
            raise ConfigError(f"{option} has the regular expression {shown}, {problem}; give a list of plain names")


def patterns_of(config: PeftConfig) -> Iterator[tuple[str, str, str]]:
    """Yield the option, what it says, and the regular expression that peft makes of it."""
    for option, around in STRINGS.items():
        given: Any = getattr(config, option, None)
        if isinstance(given, str):
            yield option, given, around.format(given)
    for option, around in LISTS.items():
        given = getattr(config, option, None) or ()
        for one in [given] if isinstance(given, str) else given:
            if isinstance(one, str):
                yield option, one, around.format(one)


def tried(pattern: str, names: Sequence[str]) -> str | None:
    """Return what is wrong with a regular expression; None for nothing."""
    command = [sys.executable or "python3", "-I", "-S", "-c", TRIAL]
    given = json.dumps([list(names), [pattern]])
    try:
        ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"which takes more than {SECONDS} seconds to match with the names of the model's modules"
    except OSError as error:
        return f"which could not be tried ({error})"
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        return f"which cannot be matched ({last[:100]})"
    return None
