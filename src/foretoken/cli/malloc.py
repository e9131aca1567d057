"""The allocator of glibc, told to keep what it has instead of giving it back to the kernel."""

from __future__ import annotations

import ctypes
import os

# name in malloc.h, its number there, and the value: no mapping per allocation, hardly any trimming, large steps
_SETTINGS = (
    ("M_MMAP_MAX", -4, 0),
    ("M_TRIM_THRESHOLD", -1, 2**31 - 1),
    ("M_TOP_PAD", -2, 256 * 2**20),
)
OFF_SWITCH = "FORETOKEN_MALLOC"


def tune_malloc() -> bool:
    """Set mallopt on glibc and tell whether it was done; FORETOKEN_MALLOC=0 turns it off."""
    if os.environ.get(OFF_SWITCH) == "0" or not _is_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    done = [mallopt(number, value) == 1 for _, number, value in _SETTINGS]  # all of them, whatever one says
    return all(done)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, AttributeError, OSError):
        return False
