"""float32 or bfloat16: which of them this machine multiplies faster, by measurement.

Processors with units for bfloat16 (AMX, AVX512-BF16) multiply it up to 20 times faster than processors without, which
are slower in bfloat16 than in float32. The names of instruction sets do not say how fast a step is, so it is measured.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.nn import functional

from foretoken.machine.products import linear

log = logging.getLogger(__name__)
Precision = Literal["fp32", "bf16"]
FP32: Precision = "fp32"
BF16: Precision = "bf16"
_ROWS = 128  # tokens of the measured product
# bf16 must be faster by this factor, as the rest of a step (softmax, norms, conversions) gains less
MARGIN = 1.25


@dataclass(frozen=True)
class MeasuredPrecision:
    """The precision that `auto` stands for on this machine, and the measurement behind it.

    Attributes:
        precision: ``fp32`` or ``bf16``.
        shape: of the measured product: rows, inner width, columns.
        seconds: of one product, by precision.
    """

    precision: Precision
    shape: tuple[int, int, int]
    seconds: dict[str, float]

    def __str__(self) -> str:
        """Return it in one line."""
        words = ", ".join(f"{name} {1000 * value:.2f} ms" for name, value in self.seconds.items())
        return f"{self.precision} (a product of {' x '.join(map(str, self.shape))}: {words})"


def product_seconds(shape: tuple[int, int, int], device: str, *, limit: float = 1.0) -> dict[str, float]:
    """Return the median seconds of a linear map in each precision, measured in turn for ``limit`` seconds."""
    rows, inner, columns = shape
    generator = torch.Generator(device)  # its own, so that the numbers of a seeded run stay the same
    inputs = torch.randn(rows, inner, device=device, generator=generator)
    weight = torch.randn(columns, inner, device=device, generator=generator)
    calls: dict[str, Callable[[], object]] = {
        FP32: partial(linear, inputs, weight),
        BF16: partial(functional.linear, inputs.bfloat16(), weight.bfloat16()),
    }
    measured: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    first = {name: _seconds(call, device) for name, call in calls.items()}  # a warm-up; the result if it takes too long
    while time.perf_counter() - began < limit:
        for name, call in calls.items():
            measured[name].append(_seconds(call, device))
    return {name: statistics.median(values) if values else first[name] for name, values in measured.items()}


def fastest_precision(config: Any, device: str) -> MeasuredPrecision:
    """Return the precision in which the linear maps of a model are the fastest here.

    Args:
        config: of the model; the measured product has the sizes of its feed-forward block.
        device: where it runs.
    """
    text = config.get_text_config()
    hidden = text.hidden_size
    shape = (_ROWS, hidden, getattr(text, "intermediate_size", None) or 4 * hidden)
    seconds = product_seconds(shape, device)
    return MeasuredPrecision(faster(seconds), shape, seconds)


def chosen_precision(precision: str, config: Any, device: str) -> str:
    """Return a precision; for ``auto`` measure which is the fastest for a model here, and log it."""
    if precision != "auto":
        return precision
    measured = fastest_precision(config, device)
    log.info("precision: %s", measured)
    return measured.precision


def faster(seconds: Mapping[str, float]) -> Precision:
    """Return the faster precision; bf16 must be faster by :data:`MARGIN`.

    >>> faster({"fp32": 1.0, "bf16": 0.5}), faster({"fp32": 1.0, "bf16": 0.9})
    ('bf16', 'fp32')
    """
    return BF16 if seconds[BF16] * MARGIN <= seconds[FP32] else FP32


def accelerator() -> str:
    """Return the type of the device that models run on here."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _seconds(call: Callable[[], object], device: str) -> float:
    began = time.perf_counter()
    with torch.no_grad():
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
