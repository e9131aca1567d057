"""The most memory that a run held."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from foretoken.memory import give_back, peak_bytes, reset_peak


class PeakMemory:
    """The most bytes held since this was made: by the process, and on its GPU.

    An earlier run of the same process does not count: what it freed is given back, and the marks are set anew.
    """

    def __init__(self) -> None:
        gc.collect()
        give_back()
        self.is_fresh = reset_peak()
        self.before = peak_bytes()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def measured(self) -> dict[str, int | None]:
        """Return the peaks in bytes; None where there is no GPU, or no way to tell this run's peak from earlier ones.

        ``rss_peak_bytes`` is the process's resident memory, ``cuda_peak_bytes`` what tensors took on the GPU,
        ``cuda_reserved_peak_bytes`` what torch took there for them.
        """
        now, cuda = peak_bytes(), torch.cuda.is_available()
        is_known = now is not None and (self.is_fresh or now > (self.before or 0))
        return {
            "rss_peak_bytes": now if is_known else None,
            "cuda_peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
            "cuda_reserved_peak_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        }


def give_back_between_layers(model: nn.Module) -> None:
    """Give what a layer freed back to the kernel before the next one begins, in the forward and in the backward pass.

    For gradient checkpointing on a processor: what it frees lies between the states that it keeps, where glibc cannot
    use it for the next layer's and keeps it all the same. Without glibc this does nothing.
    """
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.register_forward_pre_hook(_give_back_around)


def _give_back_around(layer: nn.Module, args: tuple[object, ...]) -> None:
    """Give memory back before a layer in training, and once the gradient of what comes in is there."""
    if not layer.training:
        return
    give_back()
    hidden = args[0] if args else None
    if isinstance(hidden, Tensor) and hidden.requires_grad:
        hidden.register_hook(lambda grad: give_back())


def describe(measured: dict[str, int | None]) -> str:
    """Say the peaks in words.

    >>> describe({"rss_peak_bytes": 812_300_000, "cuda_peak_bytes": 3_100_000_000})
    '812 MB of main memory, 3,100 MB on the GPU'
    """
    words = {"rss_peak_bytes": "of main memory", "cuda_peak_bytes": "on the GPU"}
    known = [f"{size / 1e6:,.0f} MB {where}" for key, where in words.items() if (size := measured.get(key))]
    return ", ".join(known) or "not known on this system"
