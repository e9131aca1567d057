"""What a request can fail with, beside what is wrong with its documents."""

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
    """The adapter does not do what is asked."""


class TooLongError(ForetokenError, ValueError):
    """The document is longer than the adapter reads, or there are too many of them."""


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
    """Call a function; an error that a client is told is returned."""
    try:
        return function(*args, **options)
    except ForetokenError as error:
        return error
