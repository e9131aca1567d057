"""Functions that take turns: each has a thread, and runs only while it has been given its turn.

So a Trainer, whose loop is its own, can stop in the middle of a step until others have come as far.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True)
class Said:
    """What one side tells the other: a value, or an error to be raised there."""

    value: Any = None
    error: BaseException | None = None

    def take(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Turns(Generic[Q, R]):
    """A function that stops wherever it asks a question, until it is given the answer.

    Attributes:
        name: what it is called.
        question: what it has asked last; None before the first turn and after the end.
        is_over: it has returned, or failed.

    >>> def double(ask):
    ...     return 2 * ask("how much?")
    >>> turns = Turns("doubling", double)
    >>> turns.go(), turns.question, turns.is_over
    (None, 'how much?', False)
    >>> turns.go(21), turns.is_over, turns.result()
    (None, True, 42)
    """

    def __init__(self, name: str, function: Callable[[Callable[[Q], Any]], R]) -> None:
        self.name, self.is_over = name, False
        self.question: Q | None = None
        self.function, self.end = function, Said()
        self.answers: SimpleQueue[Said] = SimpleQueue()
        self.questions: SimpleQueue[Q | None] = SimpleQueue()
        run = contextvars.copy_context().run
        self.thread = Thread(target=lambda: run(self.run), name=name, daemon=True)
        self.is_away = False  # it has its turn, and has not come back

    def go(self, answer: Any = None) -> None:
        """Give the function its turn, with the answer to its question, until it asks the next one or ends."""
        self.turn(Said(answer))

    def stop(self, error: BaseException) -> None:
        """Raise an error in the function where it stands, and let it end."""
        while not self.is_over and (self.thread.is_alive() or self.is_away):
            if self.is_away:  # this thread was interrupted while it waited
                self.come_back()
            else:
                self.turn(Said(error=error))

    def result(self) -> R:
        """Return what the function returned, or raise what it raised."""
        result: R = self.end.take()
        return result

    def turn(self, said: Said) -> None:
        """Say something, and wait."""
        if self.thread.ident is None:
            self.thread.start()
        self.answers.put(said)
        self.is_away = True
        self.come_back()

    def come_back(self) -> None:
        """Wait until the function asks or ends."""
        self.question = self.questions.get()
        self.is_away = False

    def run(self) -> None:
        """Run the function: what the thread does."""
        try:
            self.answers.get().take()
            self.end = Said(self.function(self.ask))
        except BaseException as error:
            self.end = Said(error=error)
        self.is_over = True
        self.questions.put(None)

    def ask(self, question: Q) -> Any:
        """Ask from within the function."""
        self.questions.put(question)
        return self.answers.get().take()
