"""The Ray cluster of a command: the one at an address, or one on this machine that ends with the command."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretoken.errors import ConfigError, one_line


@contextmanager
def ray_cluster(address: str | None, *, processes: int = 1, option: str = "--ray") -> Iterator[bool]:
    """Connect to a cluster while the block runs; yield whether it was started here.

    Args:
        address: of the cluster; None for one of this machine.
        processes: the number that run at the same time, each on one CPU.
        option: that sets this number, for error messages.

    Raises:
        ConfigError: the cluster cannot be reached, is lost, or has fewer CPUs.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    import ray
    from ray.exceptions import RayError

    was_connected = address is None and ray.is_initialized()
    try:
        if not was_connected:
            _connect(address, processes)
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < processes:
            raise ConfigError(f"{option}: got {processes}, but the Ray cluster has {cpus} CPUs; ask for fewer")
        yield not was_connected and address is None
    except (RayError, ConnectionError) as error:
        where = f"the cluster at {address}" if address else "a cluster of this machine"
        raise ConfigError(f"--ray: {where} cannot be used: {one_line(str(error))[:200]}") from error
    finally:
        if not was_connected:
            ray.shutdown()


def _connect(address: str | None, processes: int) -> None:
    import ray

    host, _, port = (address or "").rpartition(":")
    local = {} if address else {"num_cpus": max(processes, os.cpu_count() or 1), "include_dashboard": False}
    try:
        if host and port.isdigit() and "/" not in host:  # Ray's own timeout takes minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level=logging.WARNING, **local)  # type: ignore[arg-type]
    except Exception as error:  # a node that is not up within Ray's 30 s is a bare Exception
        raise ConnectionError(str(error)) from error


def whole_path(source: str) -> str:
    """Return the absolute path of a folder, as processes of a cluster run in others; return other names unchanged."""
    return str(Path(source).resolve()) if Path(source).is_dir() else source
