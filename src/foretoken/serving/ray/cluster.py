"""The Ray cluster: the one that $RAY_ADDRESS names, or one on this machine that ends with the command."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretoken.errors import ConfigError, one_line


@contextmanager
def cluster(processes: int, *, option: str) -> Iterator[bool]:
    """Connect to the cluster while the block runs; yield whether it was started here.

    Args:
        processes: the number that run at the same time, each on one CPU.
        option: that sets this number, for error messages.

    Raises:
        ConfigError: the cluster cannot be reached, or has fewer CPUs.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    import ray

    was_connected, address = ray.is_initialized(), os.environ.get("RAY_ADDRESS")
    if not was_connected:
        local = {} if address else {"num_cpus": max(processes, os.cpu_count() or 1), "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level=logging.WARNING, **local)  # type: ignore[arg-type]
        except Exception as error:  # a node that is not up within Ray's 30 s is a bare Exception
            where = f"the Ray cluster at {address}" if address else "a Ray cluster of this machine"
            raise ConfigError(f"cannot use {where}: {one_line(str(error))[:200]}") from error
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < processes:
            raise ConfigError(f"{option}: got {processes}, but the Ray cluster has {cpus} CPUs; ask for fewer")
        yield not was_connected and not address
    finally:
        if not was_connected:
            ray.shutdown()


def whole_path(source: str) -> str:
    """Return the absolute path of a folder, as processes of a cluster run in others; return other names unchanged."""
    return str(Path(source).resolve()) if Path(source).is_dir() else source
