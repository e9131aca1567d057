"""The processes of distributed training, as `torchrun` and `accelerate launch` number them."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Tell whether this process is the one that prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> int:
    """Return the number of processes that share the work."""
    return int(os.environ.get("WORLD_SIZE", "1"))
