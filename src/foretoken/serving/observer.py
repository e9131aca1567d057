"""What the engine tells of its work; metrics and traces listen."""

from __future__ import annotations


class Observer:
    """Hears what happens, and does nothing with it."""

    def accepted(self, adapter: str, documents: int) -> None:
        """Hear that documents have been put into the queue."""

    def rejected(self, reason: str) -> None:
        """Hear that a request has been refused, or has waited too long."""

    def waited(self, seconds: float) -> None:
        """Hear that a request has left the queue to be computed."""

    def batch(self, *, rows: int, tokens: int, seconds: float) -> None:
        """Hear that a batch has been computed."""
