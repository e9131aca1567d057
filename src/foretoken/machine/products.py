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

from foretoken.machine.processor import instructions, vendor
from foretoken.machine.tracing import is_traced

SWITCH = "FORETOKEN_ONEDNN"
LEAST_WIDTH = 64  # of a weight's sides: smaller products are all overhead
# oneDNN and PyTorch keep a kernel for each number of rows, with memory of a weight's size: there are to be few of them
ROWS = (1024, 256, 64)
LEAST_MANY = 256  # rows that a few are multiplied with
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


def products_with(few: Tensor, many: Tensor) -> Tensor:
    r"""Return :math:`F M^\top`, (B, R, D) and (B, N, D) -> (B, R, N), of fewer rows than :func:`linear` is made for.

    Equal up to rounding, gradients too, of any order.

    >>> few, many = torch.randn(1, 96, 64), torch.randn(1, 300, 64)
    >>> torch.allclose(products_with(few, many), few @ many.mT, atol=1e-4)
    True
    """
    if not _fits_few(few, many):
        return few @ many.mT
    if torch.is_grad_enabled() and (few.requires_grad or many.requires_grad):
        found: Tensor = _ProductsWith.apply(few[0], many[0])
        return found[None]
    return _products_with(few[0], many[0])[None]


def weighted_sums(weights: Tensor, many: Tensor) -> Tensor:
    r"""Return :math:`W M`, (B, R, N) and (B, N, D) -> (B, R, D), where N is another number at every call.

    Equal up to rounding, gradients too, of any order.

    >>> weights, many = torch.randn(1, 96, 300), torch.randn(1, 300, 64)
    >>> torch.allclose(weighted_sums(weights, many), weights @ many, atol=1e-4)
    True
    """
    if not _fits_few(weights, many):
        return weights @ many
    if torch.is_grad_enabled() and (weights.requires_grad or many.requires_grad):
        found: Tensor = _WeightedSums.apply(weights[0], many[0])
        return found[None]
    return _weighted_sums(weights[0], many[0])[None]


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
        _suits(x, weight)
        and min(weight.shape) >= LEAST_WIDTH
        and x.numel() >= ROWS[-1] * weight.shape[1]
        and x.shape[-1] == weight.shape[1]
        and (weight.is_contiguous() or weight.t().is_contiguous())
    )


def _fits_few(few: Tensor, many: Tensor) -> bool:
    """Tell whether oneDNN can multiply the rows of one document, and gains by it."""
    return (
        _suits(few, many)
        and len(few) == 1
        and min(*few.shape[1:], many.shape[2]) >= LEAST_WIDTH
        and many.shape[1] >= LEAST_MANY
        and library() == "oneDNN"
    )


def _suits(x: Tensor, other: Tensor) -> bool:
    """Tell whether these are plain tensors of float32 on the processor, and nobody looks at what is done to them."""
    return (
        not is_traced()
        and x.dtype is torch.float32 is other.dtype
        and type(x) in _PLAIN
        and type(other) in _PLAIN
        and x.device.type == "cpu" == other.device.type
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


def _filled_up(rows: Tensor) -> Tensor:
    """Fill up with rows of zeros to a multiple of the smallest number of rows: there are to be few sizes."""
    return functional.pad(rows, (0, 0, 0, -len(rows) % ROWS[-1])).contiguous()


def _products_with(few: Tensor, many: Tensor) -> Tensor:
    """Let the many be the rows and the few the weight."""
    return _multiply(many, _filled_up(few), None).t()[: len(few)].contiguous()


def _weighted_sums(weights: Tensor, many: Tensor) -> Tensor:
    """Add up the products of as many of the summed ones at a time as there are kernels for."""
    filled, many, start = _filled_up(weights), many.contiguous(), 0
    out = filled.new_zeros(len(filled), many.shape[1])
    for size in ROWS:
        while len(many) - start >= size:
            out += _multiply(filled[:, start : start + size], many[start : start + size].t(), None)
            start += size
    return out.addmm_(filled[:, start:], many[start:])[: len(weights)]


def _spread(weights: Tensor, few: Tensor) -> Tensor:
    """Return the products of the columns: (R, N), (R, D) -> (N, D)."""
    return linear(_filled_up(weights).t().contiguous(), _filled_up(few).t())


class _ProductsWith(torch.autograd.Function):
    """The gradients are the other products of these kinds."""

    @staticmethod
    def forward(ctx, few: Tensor, many: Tensor) -> Tensor:  # type: ignore[no-untyped-def] # noqa: ANN001
        ctx.save_for_backward(few, many)
        return _products_with(few, many)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def] # noqa: ANN001
        (few, many), needs = ctx.saved_tensors, ctx.needs_input_grad
        return weighted_sums(grad, many) if needs[0] else None, _spread(grad, few) if needs[1] else None


class _WeightedSums(torch.autograd.Function):
    """The same, of sums."""

    @staticmethod
    def forward(ctx, weights: Tensor, many: Tensor) -> Tensor:  # type: ignore[no-untyped-def] # noqa: ANN001
        ctx.save_for_backward(weights, many)
        return _weighted_sums(weights, many)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def] # noqa: ANN001
        (weights, many), needs = ctx.saved_tensors, ctx.needs_input_grad
        return products_with(grad, many) if needs[0] else None, _spread(weights, grad) if needs[1] else None


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
