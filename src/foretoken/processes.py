"""The processes that share one run's work, as `torchrun` and `accelerate launch` start them."""

from __future__ import annotations

import os


def num_processes() -> int:
    """Return how many processes share the work."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Tell whether this process is the one that writes files and messages."""
    return os.environ.get("RANK", "0") == "0"
