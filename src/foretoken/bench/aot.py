"""`aot`: ahead-of-time P-tuning as it is trained (fc, kronecker), and served from a fused table."""

from __future__ import annotations

from foretoken.bench.methods import NONE, aot_cases, case, measure, part_of
from foretoken.bench.plan import Options, Part

__all__ = ["measure", "plan"]


def plan(options: Options) -> list[Part]:
    """Return one part per model and size."""
    return [
        part_of(
            "aot",
            options,
            dtype,
            allocator,
            family,
            [case(NONE, "none"), *aot_cases("float16", "float32")],
            n=n,
            batch=batch,
            rounds=9,
            seconds=20,
        )
        for dtype in options.dtypes_or("float32")
        for allocator in options.allocators_or("tuned")
        for family, n, batch in (("longformer", 4096, 1), ("roberta", 128, 64), ("roberta", 512, 8))
    ]
