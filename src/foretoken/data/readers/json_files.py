"""JSON read so that nothing is lost: whole files, and long lists item by item."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretoken.data.readers.files import opened, read_text, refuse_binary
from foretoken.data.readers.rows import Row
from foretoken.errors import DataError

_CHUNK = 1 << 22
_LONGEST_ITEM = 1 << 26  # characters; what is still unfinished then is malformed


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


def read_json(path: Path) -> Any:
    """Return the value that a file holds.

    Raises:
        DataError: the file cannot be read, or is malformed; the message names line and column.
    """
    text = read_text(path)
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{malformed(path, error, 1)}; fetch the file again") from None


def malformed(path: Path, error: Exception, line: int) -> str:
    """Return place and reason; the decoder tells its own line where it was given more than one."""
    if isinstance(error, json.JSONDecodeError):
        return f"{path}:{max(line, error.lineno)}:{error.colno}: malformed JSON: {_reason(error)}"
    return f"{path}:{line}: malformed JSON: {_reason(error)}"


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) if isinstance(error, _RepeatedNameError) else "a number has more than 4,300 digits"


def stream_objects(path: Path) -> Iterator[Row]:
    """Yield (where, object) for every object of a JSON list, with little more than one object in memory.

    ``where`` counts the items from 1, since such files have no lines to name.

    Raises:
        DataError: the file is absent or not UTF-8, no list, or an item is malformed or no object.
    """
    text = _Text(path)
    if text.next_character() != "[":
        raise DataError(f"{path}:1:1: expected a JSON list ([...]) of objects")
    text.skip(1)
    number = 0
    while text.next_character() != "]":
        number += 1
        where = f"{path}:item {number}"
        value = text.value(where)
        if not isinstance(value, dict):
            raise DataError(f"{where}: got a JSON {type(value).__name__}, expected an object")
        yield where, value
        text.separator(where)
    text.skip(1)
    if text.next_character():
        raise DataError(f"{path}: there is more after the list, behind item {number}; a file holds one list")


class _Text:
    """The unread part of a file; more of it is read on demand."""

    def __init__(self, path: Path) -> None:
        self._chunks = _chunks(path)
        self._buffer = ""
        self._start = 0

    def next_character(self) -> str:
        """Return the next character that is no white space, and stand there; empty at the end."""
        while True:
            while self._start < len(self._buffer):
                if self._buffer[self._start] not in " \t\r\n":
                    return self._buffer[self._start]
                self._start += 1
            if not self._more():
                return ""

    def skip(self, count: int) -> None:
        """Go on by so many characters."""
        self._start += count

    def value(self, where: str) -> Any:
        """Return the JSON value that begins here, and stand behind it."""
        while True:
            try:
                value, self._start = DECODER.raw_decode(self._buffer, self._start)
            except (ValueError, RecursionError) as error:
                # an item cut off by the end of what was read looks malformed too
                unread = len(self._buffer) - self._start
                if unread < _LONGEST_ITEM and self._more(at_least=unread):
                    continue
                raise DataError(f"{where}: malformed JSON: {_reason(error)}; fetch the file again") from None
            return value

    def separator(self, where: str) -> None:
        """Go past a comma, or stand on the closing bracket."""
        character = self.next_character()
        if character == ",":
            self.skip(1)
        elif character != "]":
            got = repr(character) if character else "the end"
            raise DataError(f"{where}: malformed JSON: expected ',' or ']' after it, got {got}; fetch the file again")

    def _more(self, at_least: int = 0) -> bool:
        """Read on, by no less than what an item has taken so far: a long one is then decoded few times."""
        parts = [self._buffer[self._start :]]
        added = 0
        for chunk in self._chunks:
            parts.append(chunk)
            added += len(chunk)
            if added >= max(at_least, 1):
                break
        self._buffer, self._start = "".join(parts), 0
        return added > 0


def _chunks(path: Path) -> Iterator[str]:
    decode = codecs.getincrementaldecoder("utf-8-sig")()
    read = 0
    try:
        with opened(path) as file:
            while chunk := file.read(_CHUNK):
                if not read:
                    refuse_binary(path, chunk)
                yield decode.decode(chunk)
                read += len(chunk)
            decode.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not valid UTF-8 near byte {read + error.start + 1}; fetch the file again") from None
