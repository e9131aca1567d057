"""One part of a benchmark in a fresh process: the part as JSON on stdin, one JSON object a line on stdout.

The process is started through the command line (``foretoken bench worker``), because the allocator has to be set
before anything is allocated.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, TextIO

from foretoken.bench.run.plan import Part


def main() -> int:
    """Measure the part that stdin describes."""
    lines = _claimed_stdout()
    part = Part(**json.load(sys.stdin))
    try:
        _write(lines, {"result": measured(part, lambda note: _write(lines, {"note": note}))})
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the other parts are still worth measuring, and the file says why this one is not there
        traceback.print_exc()
        _write(lines, {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"})
        return 1
    return 0


def measured(part: Part, notify: Callable[[str], object] = lambda note: None) -> dict[str, Any]:
    """Return what a part measured, with what it was."""
    import torch

    if part.settings.get("threads"):
        torch.set_num_threads(part.settings["threads"])
    torch.manual_seed(0)
    start = time.perf_counter()
    values = import_module(f"foretoken.bench.{part.benchmark}").measure(part, notify)
    return {
        "title": part.title,
        "dtype": part.dtype,
        "allocator": part.allocator,
        "settings": part.settings,
        "threads": torch.get_num_threads(),
        "wall_seconds": time.perf_counter() - start,
        **values,
    }


def _claimed_stdout() -> TextIO:
    """Return stdout for our lines alone; what libraries print goes to stderr."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _write(lines: TextIO, values: dict[str, Any]) -> None:
    lines.write(json.dumps(values) + "\n")
    lines.flush()
