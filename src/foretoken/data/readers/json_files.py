"""JSON read so that nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foretoken.data.readers.files import read_text
from foretoken.errors import DataError


class _RepeatedNameError(ValueError):
    """An object has two values of one name."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in values if names.count(name) > 1)
        raise _RepeatedNameError(f"an object names {repeated!r} more than once")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)


def read_json(path: Path) -> Any:
    """Return the value that a file holds.

    Raises:
        DataError: the file cannot be read, or is malformed; the message names line and column.
    """
    return decoded(path, read_text(path))


def decoded(path: Path, text: str, line: int = 1) -> Any:
    """Return the value that a text is, which begins in this line of a file.

    Raises:
        DataError: it is malformed; the message names line and column.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        hint = "; if it is no JSON, give it the ending of its format" if line == 1 and error.pos == 0 else ""
        raise DataError(f"{path}:{line + error.lineno - 1}:{error.colno}: malformed JSON: {error.msg}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{line}: malformed JSON: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if isinstance(error, _RepeatedNameError) else "a number has more than 4,300 digits"
