"""A Ray cluster of this machine, whose workers import this source."""

import gc
import warnings
from contextlib import contextmanager

import pytest

from support.served import SRC


@contextmanager
def local_cluster(**options):
    """Run a cluster with two CPUs; yield its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(SRC))
        import ray

        for attempt in range(3):  # a node has 30 s to start, which Ray fixes, and a loaded machine takes longer
            try:
                ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, **options)
                break
            except Exception:
                ray.shutdown()
                if attempt == 2:
                    raise
        yield ray.get_runtime_context().gcs_address
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray does not wait for the processes that it ends
            ray.shutdown()
            gc.collect()
