"""Worker processes on this machine: started with the same command, watched until they end."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from foretoken.files import check_writable, make_folder
from foretoken.machine.processor import cpu_cores

log = logging.getLogger(__name__)
WORKER = "--as-worker"  # between the parent and its workers, not for users
PAUSE = 1.0  # seconds between two looks


def run_local_workers(command: Sequence[str], size: int, folder: Path, look: Callable[[], object]) -> str:
    """Start `size` workers and call `look` until all have ended.

    Returns:
        which workers ended with an error, and how; empty if none did.
    """
    check_writable(folder)
    make_folder(folder)
    with _started(command, size, folder) as workers:
        log.info("%d workers; they write to %s", size, folder)
        while any(process.poll() is None for process in workers):
            time.sleep(PAUSE)
            look()
    return _endings(workers, folder)


@contextmanager
def _started(command: Sequence[str], size: int, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, size + 1):
            with (folder / f"{number}.log").open("ab") as output:
                workers.append(_start(command, number, size, output))
        yield workers
    finally:
        _end(workers)


def _start(command: Sequence[str], number: int, size: int, output: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own, so that Ctrl-C reaches this process alone, which passes it on once."""
    return subprocess.Popen(
        [sys.executable, "-m", "foretoken", "sweep", *command, WORKER],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=os.environ | _share(number, size),
        start_new_session=True,
    )


def _share(number: int, size: int) -> Mapping[str, str]:
    """Return the environment variables that give a worker its share of the cores, and one GPU.

    Threads that wait for each other sleep: they would spin on cores that other workers need.
    """
    import torch

    cores = {"OMP_NUM_THREADS": str(max(1, (cpu_cores() or 1) // size)), "OMP_WAIT_POLICY": "PASSIVE"}
    cores = {name: value for name, value in cores.items() if name not in os.environ}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = [name for name in visible if name] or [str(index) for index in range(torch.cuda.device_count())]
    return cores | ({"CUDA_VISIBLE_DEVICES": gpus[(number - 1) % len(gpus)]} if len(gpus) > 1 else {})


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt the workers that still run, and wait until each has given its run back."""
    for process in workers:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in workers:
        process.wait()


def _endings(workers: Sequence[subprocess.Popen[bytes]], folder: Path) -> str:
    bad = {number: process.returncode for number, process in enumerate(workers, start=1) if process.returncode}
    said = ", ".join(f"worker {number} {_ending(code)}" for number, code in bad.items())
    return said and f"{said}; see {folder}"


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
