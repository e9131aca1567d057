"""The machine: what it is, which versions run on it, and how fast it multiplies matrices at best."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from foretoken.bench.measure import Effort, compare
from foretoken.machine.processor import cpu_cores, cpu_model, memory_bytes
from foretoken.machine.products import linear
from foretoken.training.run.record import hardware as run_hardware
from foretoken.training.run.record import versions

__all__ = ["GEMM_SHAPES", "TINY_SHAPES", "hardware", "matrix_limit", "synchronise", "versions"]

# rows, inner width, columns: a large square, the linear maps of a base model at 4096 and 1024 tokens
GEMM_SHAPES = (
    (2048, 2048, 2048),
    (4096, 768, 768),
    (4096, 768, 3072),
    (4096, 3072, 768),
    (1024, 768, 3072),
    (4096, 768, 2304),
)
TINY_SHAPES = ((64, 64, 64),)


def hardware() -> dict[str, Any]:
    """Return what a timing depends on."""
    return {
        "cpu": cpu_model(),
        "cores": cpu_cores(),
        "memory_bytes": memory_bytes(),
        "cuda": torch.version.cuda,
        **run_hardware(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def matrix_limit(
    dtype: torch.dtype, device: str, *, rounds: int = 3, shapes: Sequence[tuple[int, int, int]] = GEMM_SHAPES
) -> dict[str, Any]:
    """Return the operations per second of the fastest linear map of these shapes, and of each.

    >>> limit = matrix_limit(torch.float32, "cpu", shapes=[(8, 8, 8), (16, 8, 8)])
    >>> limit["flops_per_second"] == max(limit["shapes"].values())
    True
    """
    rates = {f"{m}x{k}x{n}": _rate(m, k, n, dtype, device, rounds) for m, k, n in shapes}
    return {"flops_per_second": max(rates.values()), "shapes": rates}


def _rate(m: int, k: int, n: int, dtype: torch.dtype, device: str, rounds: int) -> float:
    x, weight, bias = (torch.randn(*size, device=device).to(dtype) for size in ((m, k), (n, k), (n,)))
    timings = compare(
        {"linear": lambda: linear(x, weight, bias)},
        effort=Effort(rounds=rounds, seconds=5.0),
        synchronise=lambda: synchronise(device),
    )
    return 2 * m * k * n / statistics.median(sample.seconds for sample in timings["linear"].samples)
