"""The processor: its name, what this process may use of it, and its units for small numbers. No torch here."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# by the names that Linux has for them; the fastest unit of a type first
BF16_UNITS: Mapping[str, str] = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512", "sme": "SME", "bf16": "NEON"}
INT8_UNITS: Mapping[str, str] = {
    "amx_int8": "AMX",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX VNNI",
    "i8mm": "NEON",
}


def cpu_model() -> str:
    """Return the processor's name."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def vendor() -> str | None:
    """Return who made the processor, as it says itself (GenuineIntel, AuthenticAMD); None where that is not known."""
    return _cpuinfo().get("vendor_id")


def cpu_cores() -> int | None:
    """Return how many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count()


def memory_bytes() -> int | None:
    """Return the size of the main memory, where it is known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, AttributeError, OSError):
        return None


def instructions() -> frozenset[str] | None:
    """Return what the processor can do, as Linux calls it (avx2, amx_bf16); None where that is not known."""
    lines = _cpuinfo()
    said = lines.get("flags", lines.get("Features"))
    return None if said is None else frozenset(said.split())


def fastest_unit(units: Mapping[str, str], has: Collection[str]) -> str | None:
    """Return the unit that multiplies numbers of a type.

    >>> fastest_unit(BF16_UNITS, {"avx2", "avx512_bf16"})
    'AVX-512'
    """
    return next((unit for flag, unit in units.items() if flag in has), None)


def _cpuinfo() -> dict[str, str]:
    """Return what Linux says of the first processor; empty elsewhere."""
    try:
        first = _CPUINFO.read_text(encoding="utf-8").split("\n\n", 1)[0]
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
