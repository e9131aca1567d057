"""Who holds a run: a process on a machine, and whether it is still there."""

from __future__ import annotations

import functools
import os
import platform
import secrets
from contextlib import suppress
from pathlib import Path


def new_owner() -> str:
    """Return a name that no other worker has: machine, process, the time it began, and a random part."""
    return "/".join([machine(), str(os.getpid()), _began(os.getpid()) or "", secrets.token_hex(4)])


def is_gone(owner: str) -> bool:
    """Tell for certain that a worker of this machine has ended; of other machines nothing is certain.

    >>> is_gone(new_owner())
    False
    """
    where, _, rest = owner.partition("/")
    if where != machine() or rest.count("/") != 2:
        return False
    number, began, _ = rest.split("/")
    return _began(int(number)) != began


def machine_of(owner: str) -> str:
    """Return the host name of a worker."""
    return owner.partition("/")[0].partition("@")[0]


@functools.cache
def machine() -> str:
    """Name this machine since its start, and the container: process numbers mean something within these only."""
    parts = [_text("/proc/sys/kernel/random/boot_id")[:8]]
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]"))
    return "@".join([platform.node().replace("/", "_") or "localhost", "-".join(filter(None, parts))])


def _began(process: int) -> str | None:
    """Return when a process began; None where there is none, or only its exit code waits to be read."""
    import psutil

    try:
        found = psutil.Process(process)
        return None if found.status() == psutil.STATUS_ZOMBIE else f"{found.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
