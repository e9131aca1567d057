"""The memory of this process: the most that it held, and what it keeps without need."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

_PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")  # two names of one
_PROC = Path("/proc/self")


def keep_few_primitives() -> None:
    """Let oneDNN keep the kernels of the last 128 shapes, and not of 1,024, unless somebody has said how many.

    PyTorch's linear maps on the processor are its kernels, one for each number of rows. Packed batches hardly ever have
    the same number twice, so what is kept is not used again, and grows: to gigabytes in an hour of training. It has to
    be called before the first of them is made.
    """
    if not any(name in os.environ for name in _PRIMITIVES):
        os.environ[_PRIMITIVES[0]] = "128"


def give_back() -> None:
    """Give memory that was freed back to the kernel, where glibc keeps it; what is freed later is kept again."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


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


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, AttributeError, OSError):
        return False
