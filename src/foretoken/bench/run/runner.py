"""Run the parts of a benchmark, each in a process of its own, and keep what was measured, whatever happens."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

from foretoken.bench.measure import prefixed
from foretoken.bench.run.plan import Options, Part
from foretoken.errors import ConfigError
from foretoken.files import check_writable, write_json

log = logging.getLogger(__name__)
FORMAT = 1
FINISHED, INTERRUPTED, FAILED, RUNNING = "finished", "interrupted", "failed", "running"
_KEPT_ERROR = 4000  # characters of a failed part's stderr


def run_benchmark(name: str, options: Options) -> tuple[Path, dict[str, Any]]:
    """Measure, write the results after every part, and return their file and values.

    Ctrl-C leaves what was measured so far in the file, marked as interrupted.

    Raises:
        ConfigError: an option that cannot work here.
        SaveError: the folder cannot be written to.
    """
    from foretoken.bench.machine import hardware, versions
    from foretoken.training.trainer.progress import progress_bar

    check_device(options.device)
    check_writable(options.output)
    parts: Sequence[Part] = options.chosen(import_module(f"foretoken.bench.{name}").plan(options))
    file = options.output / f"{name}{'-quick' if options.quick else ''}-{_now():%Y%m%d-%H%M%S}.json"
    values: dict[str, Any] = {
        "format": FORMAT,
        "benchmark": name,
        "status": RUNNING,
        "started": _time(),
        "settings": {key: _plain(value) for key, value in asdict(options).items()},
        "hardware": hardware(),
        "versions": versions(),
        "results": [],
    }
    try:
        with progress_bar(f"bench {name}") as bar:
            task = bar.add_task("", total=len(parts), note="")
            for part in parts:
                notify = prefixed(lambda note: bar.update(task, note=note), part.title)
                measure_into(values, part, notify)
                bar.advance(task)
                write_json(file, values)
        values["status"] = FAILED if failures(values) else FINISHED
    except BaseException:
        values["status"] = INTERRUPTED
        raise
    finally:
        values["ended"] = _time()
        if values["results"]:
            write_json(file, values)
            log.info("results: %s", file)
    return file, values


def measure_into(values: dict[str, Any], part: Part, notify: Callable[[str], object]) -> None:
    """Add a part's result to the values, or why there is none."""
    start = time.perf_counter()
    result = run_part(part, notify)
    values["results"].append(result)
    seconds = time.perf_counter() - start
    log.info("%s: %s", part.title, result.get("error", f"measured in {seconds:.0f} s"))


def run_part(part: Part, notify: Callable[[str], object] = lambda note: None) -> dict[str, Any]:
    """Measure a part in a fresh process and return its result, or its ``error``."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "foretoken", "bench", "worker"]
    known = {"title": part.title, "dtype": part.dtype, "allocator": part.allocator, "settings": part.settings}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        ) as process,
    ):
        try:
            found = _conversation(process, part, notify)
        except BaseException:
            process.terminate()
            raise
        code = process.wait()
        if "result" in found:
            return found["result"]
        errors.seek(0)
        said = errors.read()[-_KEPT_ERROR:]
        reason = found.get("error") or f"the process ended with code {code}" + (" (memory?)" if code < 0 else "")
        return {**known, "error": reason, "stderr": said}


def _conversation(process: subprocess.Popen[str], part: Part, notify: Callable[[str], object]) -> dict[str, Any]:
    """Hand the part over and read the process's lines until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin:
        process.stdin.write(json.dumps(asdict(part)))
    found: dict[str, Any] = {}
    for line in process.stdout:
        said = json.loads(line)
        if "note" in said:
            notify(said["note"])
        found |= said
    return found


def failures(values: dict[str, Any]) -> list[str]:
    """Return one line per part that failed, or whose numbers are not transformers'."""
    return [
        f"{result['title']}: {result.get('error') or result['failed']}"
        for result in values["results"]
        if "error" in result or result.get("failed")
    ]


def check_device(device: str) -> None:
    """Raise ConfigError for a device that is not there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device is cuda and PyTorch finds no CUDA device here; leave it out for the CPU")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _time() -> str:
    return _now().isoformat(timespec="seconds")
