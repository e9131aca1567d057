"""The memory of this process: its peak, and the release of memory that is not needed."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

_CACHES = (  # oneDNN's own, by its two names, and PyTorch's in front of it
    ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"),
    ("LRU_CACHE_CAPACITY",),
)
_PROC = Path("/proc/self")


def keep_few_primitives() -> None:
    """Let oneDNN and PyTorch cache the kernels of 32 shapes in place of 1,024, unless the environment sets a number.

    On a CPU PyTorch's linear maps use one oneDNN kernel for each number of rows. Packed batches hardly ever have the
    same number twice, so what a cache holds beyond the layers of one pass is useless, and grows to gigabytes in an hour
    of training. Call this before the first linear map runs.
    """
    for names in _CACHES:
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = "32"


def give_back() -> None:
    """Return freed memory, which glibc keeps, to the kernel."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def peak_bytes() -> int | None:
    """Return the peak memory of the process since :func:`reset_peak`, or since its start."""
    known = _counted("VmHWM")
    if known is not None or sys.platform == "win32":
        return known
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> bool:
    """Reset the peak memory, which Linux alone can (man proc_pid_clear_refs); return whether it did."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return _counted("VmHWM") is not None


def _counted(name: str) -> int | None:
    """Return a number of bytes in Linux's status of this process."""
    try:
        match = re.search(rf"^{name}:\s+(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, AttributeError, OSError):
        return False
