"""Texts and numbers of nested data that nothing can be done with, at any depth and under any key, known or not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from foretoken.errors import cut, printable, quoted
from foretoken.options import Errors, is_usable

_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # no tab, no new line: columns have them
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # bytes, on Linux
_PATHS = ("model", "output", "data.path", "data.train", "data.validation", "data.test")


def add_plain_errors(values: Any, errors: Errors) -> None:
    """Add the lines of `plain_errors` for keys of which nothing has been said."""
    said = {line.partition(":")[0] for line in errors}
    errors.extend(line for line in plain_errors(values) if line.partition(":")[0] not in said)


def plain_errors(values: Any) -> Errors:
    r"""Return one line for every text, number and path that nothing can be done with.

    >>> plain_errors({"data": {"path": "mail\0.csv"}})
    ["data.path: got 'mail\\x00.csv', which holds the character '\\x00'"]
    >>> plain_errors({"seeds": [float("nan")]})
    ['seeds[0]: got nan, expected a number between -2^63 and 2^63']
    """
    return [f"{key}: {problem}" for key, value in _leaves(values, "") for problem in _problems(key, value)]


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            at = f"{key}.{name}" if key else str(name)
            yield from _leaves(item, cut(printable(at), _LONGEST_NAME))
            if isinstance(name, str) and _UNUSABLE.search(name):
                yield cut(printable(at), _LONGEST_NAME), name
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{key}[{index}]")
    else:
        yield key, value


def _problems(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, int | float) and not is_usable(value):
        yield f"got {quoted(value)}, expected a number between -2^63 and 2^63"
    if isinstance(value, str):
        found = _UNUSABLE.search(value)
        if found:
            yield f"got {quoted(value)}, which holds the character {found[0]!r}"
        elif key in _PATHS and _is_too_long(value):
            yield f"got {quoted(value)}, which is longer than a path or a name in it can be"


def _is_too_long(path: str) -> bool:
    raw = path.encode()
    return len(raw) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in raw.split(b"/"))
