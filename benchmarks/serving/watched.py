"""`foretoken serve` with a thread that writes down what the process holds, for soak.py.

    python -m benchmarks.serving.watched FILE SECONDS RUN_OR_ADAPTER... --port 0

Every so many seconds a line of JSON is added to FILE: resident megabytes, Python objects that are alive after a
collection, blocks of Python's own allocator, threads, and of glibc's what is in use and what it has from the kernel.
"""

import ctypes
import gc
import json
import sys
import threading
import time
from pathlib import Path

from foretoken_cli import main


class MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, summed over all of its arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def glibc():
    """Return the megabytes that are in use, and those that glibc has; None without it."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None, None
    ask.restype = MallInfo
    found = ask()
    return (found.uordblks + found.hblkhd) / 1e6, (found.arena + found.hblkhd) / 1e6


def resident():
    """Return the resident megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000


def sample(start):
    """Return what the process holds now."""
    gc.collect()
    used, held = glibc()
    return {
        "seconds": round(time.monotonic() - start, 1),
        "resident_mb": resident(),
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "threads": threading.active_count(),
        "malloc_used_mb": used,
        "malloc_held_mb": held,
    }


def watch(file, every):
    """Add a line to the file, again and again."""
    start = time.monotonic()
    while True:
        with file.open("a") as target:
            target.write(json.dumps(sample(start)) + "\n")
        time.sleep(every)


if __name__ == "__main__":
    place, seconds, *words = sys.argv[1:]
    threading.Thread(target=watch, args=(Path(place), float(seconds)), daemon=True).start()
    sys.exit(main(["serve", *words]))
