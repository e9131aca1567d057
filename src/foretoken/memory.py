"""The memory of this process: glibc's allocator, told to keep what it has, and the most that was held.

glibc takes every large tensor as a mapping of its own, which the kernel fills with zeros, page by page, at every use.
In a training step on a CPU that can cost as much as the computation.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
from pathlib import Path

log = logging.getLogger(__name__)
# name in malloc.h, its number there, and the value: no mapping per allocation, hardly any trimming, large steps
_SETTINGS = (
    ("M_MMAP_MAX", -4, 0),
    ("M_TRIM_THRESHOLD", -1, 2**31 - 1),
    ("M_TOP_PAD", -2, 256 * 2**20),
)
OFF_SWITCH = "FORETOKEN_MALLOC"
_PROC = Path("/proc/self")
_state = {"tuned": False}


def tune_malloc() -> bool:
    """Tell glibc to keep freed memory for the process, and return whether it will.

    It is for the whole process and cannot be taken back. The ``foretoken`` command calls it at its start; elsewhere
    call it before the first large tensor is made. Without glibc, and with FORETOKEN_MALLOC=0, it does nothing. It has
    no say over other allocators (jemalloc, tcmalloc), and none over a GPU's memory.

    >>> tune_malloc() == malloc_is_tuned()
    True
    """
    reason = _not_here()
    if reason is None and not _state["tuned"]:
        mallopt = ctypes.CDLL(None).mallopt
        done = [mallopt(number, value) == 1 for _, number, value in _SETTINGS]  # all of them, whatever one says
        _state["tuned"] = all(done)
        reason = None if all(done) else "it refused a setting"
    log.debug("allocator: %s", "glibc keeps freed memory" if reason is None else f"left as it is ({reason})")
    return _state["tuned"]


def malloc_is_tuned() -> bool:
    """Tell whether :func:`tune_malloc` was called here and had an effect."""
    return _state["tuned"]


def give_back() -> None:
    """Give memory that was freed back to the kernel, where glibc keeps it; what is freed later is kept again."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int | None:
    """Return what the process holds now; the most so far where only that is known, None where nothing is."""
    return _counted("VmRSS") or peak_bytes()


def peak_bytes() -> int | None:
    """Return the most that the process has held since :func:`reset_peak`, or since it began."""
    known = _counted("VmHWM")
    if known is not None or sys.platform == "win32":
        return known
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> bool:
    """Let Linux count the most that is held from now on, and return whether it does (man proc_pid_clear_refs)."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return _counted("VmHWM") is not None


def _counted(name: str) -> int | None:
    """Return the bytes that Linux counts of this process under a name."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _not_here() -> str | None:
    if os.environ.get(OFF_SWITCH) == "0":
        return f"{OFF_SWITCH}=0"
    return None if _is_glibc() else "not glibc"


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, AttributeError, OSError):
        return False
