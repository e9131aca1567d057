"""What surrounds a forward pass in training: short attention in float32, smooth labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own code uses
from torch.overrides import TorchFunctionMode

MOST_KEYS = 512
_SDPA = F.scaled_dot_product_attention


class Float32Attention(TorchFunctionMode):
    """While it is entered, SDPA on a CPU is in float32 if it needs a gradient, has no dropout, and 512 keys at most.

    PyTorch's backward kernel for bfloat16 on CPUs multiplies many small matrices, and is slower there than the one for
    float32: ten times and more at 30 keys, level at a thousand (``benchmarks/short_attention.py``). Dropout has another
    kernel. What is given and returned keeps its type.
    """

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = kwargs or {}
        if func is not _SDPA or len(args) < 3 or options.get("dropout_p") or not _is_slow(*args[:3]):
            return func(*args, **options)
        widened = {name: _wide(value) for name, value in options.items()}
        with torch.autocast("cpu", enabled=False):
            return func(*map(_wide, args), **widened).to(torch.bfloat16)


class SmoothedLabels(TorchFunctionMode):
    """While it is entered, every cross-entropy spreads this share of each label evenly over all classes.

    Szegedy et al. 2016, section 7. The losses of transformers' own heads have no such option.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = dict(kwargs or {})
        if func is F.cross_entropy:
            options["label_smoothing"] = self.share
        return func(*args, **options)


def _is_slow(query: Tensor, key: Tensor, value: Tensor) -> bool:
    computed = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    narrow = query.device.type == "cpu" and computed == torch.bfloat16
    needed = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return narrow and needed and key.shape[-2] <= MOST_KEYS


def _wide(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value
