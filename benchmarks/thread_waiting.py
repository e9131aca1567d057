"""What waiting threads cost where processes have more threads than the machine has cores.

    python -m benchmarks.thread_waiting [--output benchmarks/results/thread_waiting] [--processes 1 4] [--rounds 3]

Processes with two threads each start together and do the same small linear maps, as a training step has them, with
OMP_WAIT_POLICY as it is (a thread that is done spins until the others are), PASSIVE (it sleeps), and with one thread.
Counted are the slowest process's wall seconds and the processor seconds of all. The settings take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "as it is": {"OMP_NUM_THREADS": "2"},
    "passive": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def work() -> None:
    """Wait for a line on stdin, compute, and print the seconds of the wall's and the processor's clock."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    inputs = torch.randn(128, 256)
    with torch.inference_mode():
        model(inputs)
        print("ready", flush=True)
        sys.stdin.readline()
        wall, own = time.perf_counter(), time.process_time()
        for _ in range(300):
            model(inputs)
    print(json.dumps([time.perf_counter() - wall, time.process_time() - own]))


def together(count: int, variables: dict[str, str]) -> tuple[float, float]:
    """Return the slowest wall time and the sum of the processor times."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [sys.executable, __file__, "--work"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=clean | variables, **pipes) for _ in range(count)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return max(wall for wall, _ in found), sum(own for _, own in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "thread_waiting")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    from benchmarks.suite.machine import hardware, versions
    from foretoken.files import write_json

    values: dict[str, Any] = {"hardware": hardware(), "versions": versions(), "load_average": os.getloadavg()[0]}
    for count in options.processes:
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
        for _ in range(options.rounds):
            for name, variables in SETTINGS.items():
                runs[name].append(together(count, variables))
        values[f"{count} processes"] = {
            name: {
                "wall_seconds": round(statistics.median(wall for wall, _ in found), 2),
                "processor_seconds": round(statistics.median(own for _, own in found), 2),
                "runs": len(found),
            }
            for name, found in runs.items()
        }
    write_json(options.output.with_suffix(".json"), values)
    print(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
