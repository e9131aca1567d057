"""The id of a worker, which names its process, and whether that still runs."""

from __future__ import annotations

import functools
import os
import platform
import secrets
from contextlib import suppress
from pathlib import Path


def new_worker_id() -> str:
    """Return an id that no other worker has: machine, process, the time it started, and a random part."""
    return "/".join([machine(), str(os.getpid()), _began(os.getpid()) or "", secrets.token_hex(4)])


def is_gone(worker_id: str) -> bool:
    """Tell whether a worker of this machine has ended; of workers on other machines False.

    >>> is_gone(new_worker_id())
    False
    """
    where, _, rest = worker_id.partition("/")
    if where != machine() or rest.count("/") != 2:
        return False
    number, began, _ = rest.split("/")
    return _began(int(number)) != began


def machine_of(worker_id: str) -> str:
    """Return the host name of a worker."""
    return worker_id.partition("/")[0].partition("@")[0]


@functools.cache
def machine() -> str:
    """Return a name for this machine since its start, and its container: process numbers are unique within these."""
    parts = [_text("/proc/sys/kernel/random/boot_id")[:8]]
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]"))
    return "@".join([platform.node().replace("/", "_") or "localhost", "-".join(filter(None, parts))])


def _began(process: int) -> str | None:
    """Return when a process started; None if there is none, or a zombie."""
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
