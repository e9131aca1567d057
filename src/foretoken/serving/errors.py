"""Errors of requests, beside those of their documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from foretoken.errors import ForetokenError

T = TypeVar("T")
P = ParamSpec("P")


class NoSuchAdapterError(ForetokenError, KeyError):
    """No adapter has this name."""

    def __str__(self) -> str:
        """Return the message; KeyError would quote it."""
        return str(self.args[0])


class WrongTaskError(ForetokenError, ValueError):
    """The adapter has another task."""


class TooLongError(ForetokenError, ValueError):
    """A document is too long, or there are too many of them."""


class BusyError(ForetokenError, RuntimeError):
    """The queue is full, or the request has waited too long.

    Attributes:
        retry_after: seconds after which there will be room.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotReadyError(ForetokenError, RuntimeError):
    """The engine is starting, or has been closed."""


class ComputeError(ForetokenError, RuntimeError):
    """The model failed on a document."""


def tried(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | ForetokenError:
    """Call a function; return an error of foretoken in place of raising it."""
    try:
        return function(*args, **options)
    except ForetokenError as error:
        return error
