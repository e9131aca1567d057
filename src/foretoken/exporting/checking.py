"""Whether what was written computes what the model does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from foretoken.errors import BackboneError, cut
from foretoken.exporting.graph import Graph, Inputs, Sample

Run: TypeAlias = Callable[[Sample], Mapping[str, Any]]  # outputs by name, as arrays
TOLERANCE = 1e-4  # of outputs up to 1, and a share of larger ones; rounding in another order makes less


@torch.no_grad()
def expected_of(graph: Graph, samples: Iterable[Sample]) -> list[Inputs]:
    """Return the model's own outputs by name, for every sample."""
    return [dict(zip(graph.output_names, graph(**sample.inputs), strict=True)) for sample in samples]


def differences(run: Run, samples: Iterable[Sample], expected: Iterable[Inputs]) -> float:
    """Return how far outputs are at most from the model's own, beyond 1 as a share of these."""
    most = 0.0
    for sample, outputs in zip(samples, expected, strict=True):
        found = run(sample)
        for name, value in outputs.items():
            distance = (torch.as_tensor(found[name]) - value).abs() / value.abs().clamp(min=1)
            most = max(most, float(distance.nan_to_num(nan=torch.inf).max()))
    return most


def check(run: Run, samples: Iterable[Sample], expected: Iterable[Inputs]) -> float:
    """Return :func:`differences`, or raise BackboneError where they are more than rounding."""
    try:
        found = differences(run, samples, expected)
    except Exception as error:  # of onnxruntime or PyTorch: whatever it is, the graph is of no use
        said = cut(" ".join(str(error).split()), 200)
        raise BackboneError(
            f"the exported graph does not run on documents of other lengths ({said}): this model cannot be exported; "
            "serve it with foretoken itself"
        ) from error
    if found > TOLERANCE:
        raise BackboneError(
            f"the exported graph's outputs differ from the model's by {found:.1e}, more than {TOLERANCE:.0e}: this "
            "model cannot be exported for documents of every length; serve it with foretoken itself"
        )
    return found
