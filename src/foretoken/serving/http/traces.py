"""Spans of OpenTelemetry, where they are asked for; `opentelemetry-instrument` says where they go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foretoken.errors import ConfigError

_NAME = "foretoken.serving"


class Traces:
    """Makes a span of every request, or none.

    Args:
        on: whether to.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, *, on: bool) -> None:
        self._tracer: Any = None
        if on:
            try:
                from opentelemetry import trace
            except ImportError:
                raise ConfigError("traces need OpenTelemetry; pip install opentelemetry-distro") from None
            self._tracer = trace.get_tracer(_NAME)

    @contextmanager
    def span(self, name: str) -> Iterator[dict[str, str | int]]:
        """Yield a dictionary whose items become the span's attributes."""
        found: dict[str, str | int] = {}
        if self._tracer is None:
            yield found
            return
        with self._tracer.start_as_current_span(name) as span:
            try:
                yield found
            finally:
                span.update_name(str(found.get("http.route", name)))
                span.set_attributes(found)
