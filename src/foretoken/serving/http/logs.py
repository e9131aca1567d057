"""Logs as JSON, a line for each request. No text of a document is in any of them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

requests = logging.getLogger("foretoken.serving.requests")


class JsonLines(logging.Formatter):
    """One JSON object a line; ``extra={"fields": {...}}`` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        values = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        values |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:  # its message may hold what a client sent
            values["exception"] = record.exc_info[0].__name__
        return json.dumps(values)


def log_as_json(*, debug: bool = False) -> None:
    """Let foretoken and uvicorn write JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("foretoken", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
