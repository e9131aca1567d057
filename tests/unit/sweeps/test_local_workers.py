"""What the worker processes of a sweep are given of the machine."""

import pytest
import torch

from foretoken.sweeps import local_workers


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize(("cores", "workers", "threads"), [(16, 4, "4"), (16, 3, "5"), (2, 5, "1"), (None, 2, "1")])
def test_workers_divide_the_cores_that_this_process_may_use(monkeypatch, cores, workers, threads):
    monkeypatch.setattr(local_workers, "cpu_cores", lambda: cores)
    given = local_workers._share(1, workers)
    assert given == {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}


def test_what_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert local_workers._share(1, 2) == {}
