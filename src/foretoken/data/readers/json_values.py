"""JSON values, read so that nothing is lost: an object that names something twice is malformed."""

from __future__ import annotations

import json
from typing import Any


class _RepeatedNameError(ValueError):
    """An object has two values of one name."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in values if names.count(name) > 1)
        raise _RepeatedNameError(f"an object names {repeated!r} more than once")
    return values


DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)


def reason(error: Exception) -> str:
    """Return why JSON was not decoded."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if isinstance(error, _RepeatedNameError) else "a number has more than 4,300 digits"
