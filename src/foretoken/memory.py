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
_PRIMITIVES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")  # two names of one
OFF_SWITCH = "FORETOKEN_MALLOC"
_PROC = Path("/proc/self")
_OTHERS = re.compile(r"/lib(jemalloc|tcmalloc|mimalloc|hoard|snmalloc|rpmalloc|scudo)[^/\s]*\.so[^/\s]*")
_state = {"tuned": False, "refused": False, "said": False}


def tune_malloc(wanted: bool = True) -> bool:
    """Tell glibc to keep freed memory for the process, and return whether it does.

    It is for the whole process and cannot be taken back. The ``foretoken`` command does it at its start, and a model
    on the processor that gets an adapter or goes through :func:`foretoken.speed_up` does it by itself; to have all of
    the program's tensors in such memory, call it before the first one is made. Without glibc, and with
    FORETOKEN_MALLOC=0, it does nothing. It has no say over other allocators (jemalloc, tcmalloc), and none over a
    GPU's memory.

    Args:
        wanted: False: leave the allocator as it is, also when an adapter is attached later.

    >>> tune_malloc() == malloc_is_tuned()
    True
    """
    _state["refused"] = not wanted
    return _tune(_not_here(), logging.DEBUG)


def tune_malloc_by_default(*, device: str = "cpu", level: int = logging.INFO) -> bool:
    """Do as :func:`tune_malloc` unless somebody has decided about the allocator; say so once in the log.

    Decided has who calls ``tune_malloc(False)``, sets FORETOKEN_MALLOC, a variable of glibc's (``MALLOC_...``,
    ``GLIBC_TUNABLES`` with a setting of malloc), or loads another allocator. Nothing is done for a model that lies
    on another device.
    """
    if _state["tuned"] or device != "cpu":
        return _state["tuned"]
    return _tune(_not_here() or _decided(), logging.DEBUG if _state["said"] else level)


def _tune(reason: str | None, level: int) -> bool:
    """Set what is to be set unless there is a reason against it."""
    if reason is None and not _state["tuned"]:
        mallopt = ctypes.CDLL(None).mallopt
        done = [mallopt(number, value) == 1 for _, number, value in _SETTINGS]  # all of them, whatever one says
        _state["tuned"] = all(done)
        reason = None if all(done) else "it refused a setting"
    _state["said"] = True
    log.log(
        level,
        "allocator: %s",
        f"glibc keeps freed memory ({OFF_SWITCH}=0: not)" if reason is None else f"left as it is ({reason})",
    )
    return _state["tuned"]


def malloc_is_tuned() -> bool:
    """Tell whether :func:`tune_malloc` was called here and had an effect."""
    return _state["tuned"]


def keep_few_primitives() -> None:
    """Let oneDNN keep the kernels of the last 128 shapes, and not of 1,024, unless somebody has said how many.

    PyTorch's linear maps on the processor are its kernels, one for each number of rows. Batches of a server hardly ever
    have the same number twice, so what is kept is not used again, and grows for hours. It has to be called before the
    first of them is made.
    """
    if not any(name in os.environ for name in _PRIMITIVES):
        os.environ[_PRIMITIVES[0]] = "128"


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
    if _state["refused"]:
        return "tune_malloc(False) was called"
    return None if _is_glibc() else "not glibc"


def _decided() -> str | None:
    """Return what somebody else has set or loaded, if anything; FORETOKEN_MALLOC=1 goes before all of it."""
    if os.environ.get(OFF_SWITCH) == "1":
        return None
    if ".malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES is set"
    variable = next((name for name in sorted(os.environ) if name.startswith("MALLOC_")), None)
    return f"{variable} is set" if variable else other_allocator()


def other_allocator() -> str | None:
    """Return the library of another allocator that the process has loaded, by LD_PRELOAD above all."""
    try:
        found = _OTHERS.search((_PROC / "maps").read_text())
    except OSError:
        return None
    return f"{found[0].removeprefix('/')} is loaded" if found else None


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, AttributeError, OSError):
        return False
