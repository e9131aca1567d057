"""The most memory that a run held."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import torch

from foretoken.malloc import give_back

_PROC = Path("/proc/self")


class PeakMemory:
    """The most bytes held since this was made: by the process, and on its GPU.

    An earlier run of the same process does not count: what it freed is given back, and the marks are set anew.
    """

    def __init__(self) -> None:
        gc.collect()
        give_back()
        self.is_fresh = _reset_mark()
        self.before = _mark()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def measured(self) -> dict[str, int | None]:
        """Return the peaks in bytes; None where there is no GPU, or no way to tell this run's peak from earlier ones.

        ``rss_peak_bytes`` is the process's resident memory, ``cuda_peak_bytes`` what tensors took on the GPU,
        ``cuda_reserved_peak_bytes`` what torch took there for them.
        """
        now, cuda = _mark(), torch.cuda.is_available()
        told = now is not None and (self.is_fresh or now > (self.before or 0))
        return {
            "rss_peak_bytes": now if told else None,
            "cuda_peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "cuda_reserved_peak_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        }


def describe(measured: dict[str, int | None]) -> str:
    """Say the peaks in words.

    >>> describe({"rss_peak_bytes": 812_300_000, "cuda_peak_bytes": 3_100_000_000})
    '812 MB of main memory, 3,100 MB on the GPU'
    """
    words = {"rss_peak_bytes": "of main memory", "cuda_peak_bytes": "on the GPU"}
    known = [f"{measured[key] / 1e6:,.0f} MB {where}" for key, where in words.items() if measured.get(key)]  # type: ignore[operator]
    return ", ".join(known) or "not known on this system"


def _reset_mark() -> bool:
    """Let Linux forget the highest resident size so far; tell whether it did."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return _high_water() is not None


def _mark() -> int | None:
    """Return the highest resident size since the mark was set, or since the process began."""
    linux = _high_water()
    if linux is not None or sys.platform == "win32":
        return linux
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _high_water() -> int | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
