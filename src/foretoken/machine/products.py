r"""Products of float32 matrices by the faster of the libraries that PyTorch has.

PyTorch gives float32 to MKL, which has no AVX-512 for processors that are not Intel's; oneDNN, which PyTorch gives
bfloat16 to, has it for all. On a Zen 5 that is twice the speed, on a Zen 4 a tenth more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad
from torch.nn import functional

from foretoken.attention.tracing import is_traced
from foretoken.machine.processor import instructions, vendor

SWITCH = "FORETOKEN_ONEDNN"
LEAST_WIDTH = 64  # of a weight's sides: smaller products are all overhead
# oneDNN and PyTorch keep a kernel for each number of rows, with memory of a weight's size: there are to be few of them
ROWS = (1024, 256, 64)
_PLAIN = (Tensor, nn.Parameter)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Return :math:`x W^\top + b` as :func:`torch.nn.functional.linear` does, by oneDNN where that is faster.

    Equal up to rounding, gradients too, of any order. Only float32 of some size on the processor goes another way.

    Args:
        x: (..., in_features).
        weight: (out_features, in_features), also a transposed view.
        bias: (out_features,).

    >>> x, weight = torch.randn(8, 64), torch.randn(96, 64)
    >>> torch.allclose(linear(x, weight), functional.linear(x, weight), atol=1e-4)
    True
    """
    if not (_fits(x, weight) and library() == "oneDNN"):
        return functional.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (x, weight, bias)):
        found: Tensor = _Linear.apply(x, weight, bias)
        return found
    return _multiply(x, weight, bias)


def library() -> str:
    """Return what multiplies float32 on the processor here: ``oneDNN``, or else what PyTorch was built with.

    FORETOKEN_ONEDNN=1 or 0 decides; without it, oneDNN does on processors with AVX-512 that are not Intel's.
    """
    wanted = os.environ.get(SWITCH)
    if _onednn() is not None and torch.backends.mkldnn.enabled and (wanted == "1" or (wanted != "0" and _pays())):
        return "oneDNN"
    return "MKL" if torch.backends.mkl.is_available() else "BLAS"


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Tell whether oneDNN can do it and gains by it."""
    return (
        not is_traced()
        and x.dtype is torch.float32 is weight.dtype
        and type(x) in _PLAIN
        and type(weight) in _PLAIN
        and x.device.type == "cpu" == weight.device.type
        and min(weight.shape) >= LEAST_WIDTH
        and x.numel() >= ROWS[-1] * weight.shape[1]
        and x.shape[-1] == weight.shape[1]
        and (weight.is_contiguous() or weight.t().is_contiguous())
        and not torch.is_autocast_enabled("cpu")
        and not _is_transformed()
    )


def _is_transformed() -> bool:
    """Tell whether torch.func or forward-mode differentiation is at work, which know PyTorch's own functions."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


@cache
def _pays() -> bool:
    """Tell whether MKL leaves the widest units of this processor idle."""
    has = instructions() or ()
    return torch.backends.mkl.is_available() and "avx512f" in has and vendor() not in (None, "GenuineIntel")


@cache
def _onednn() -> Callable[..., Tensor] | None:
    """Return PyTorch's linear map in oneDNN, which its compiler uses; None for a PyTorch without it."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply as many rows at a time as there are kernels for, and what is left over in PyTorch's own way."""
    onednn = _onednn()
    assert onednn is not None
    rows = x.reshape(-1, weight.shape[1]).contiguous()  # rows with gaps would get a slow kernel
    out, start = rows.new_empty(len(rows), len(weight)), 0
    for size in ROWS:
        while len(rows) - start >= size:
            out[start : start + size] = onednn(rows[start : start + size], weight, bias, "none", [], "")
            start += size
    if start < len(rows):
        out[start:] = functional.linear(rows[start:], weight, bias)
    return out.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    """The product; the gradient of its input is such a product itself."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[no-untyped-def] # noqa: ANN001
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def] # noqa: ANN001
        (x, weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            linear(grad, weight.t()) if needs[0] else None,
            rows.t() @ x.flatten(0, -2) if needs[1] else None,  # oneDNN has no fast kernel for columns of its input
            rows.sum(0) if needs[2] else None,
        )
