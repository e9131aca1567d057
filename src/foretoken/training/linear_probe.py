"""A regularised linear model of fixed features, which a head starts as; inner folds choose how strong it may be.

Shapes: n documents, F features, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # (n, C) outputs and labels -> their mean loss
STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # scikit-learn's C: the smallest one is shrunk most
FOLDS = 5
_FEW = 3000  # documents: of more, one fold is held out, not each in turn
_ITERATIONS = 300
_WORSE = 2  # strengths in a row whose loss is higher end the search


@dataclass(frozen=True)
class LinearProbe:
    """A fitted linear model.

    Attributes:
        weight: of the features as they are given (C, F).
        bias: (C,).
        strength: scikit-learn's ``C``: the inverse of the penalty on half of the squared weights.
        loss: mean loss of the documents while they were held out; NaN where there were too few to hold any out.
        held_out: (m,) the numbers of the documents that were held out once.
        outputs: (m, C) what the models that had not seen them made of these.
    """

    weight: Tensor
    bias: Tensor
    strength: float
    loss: float
    held_out: Tensor
    outputs: Tensor


def fit_probe(
    features: Tensor,
    labels: Tensor,
    loss: Loss,
    outputs: int,
    folds: Sequence[Sequence[int]],
    *,
    one_scale: bool = False,
) -> LinearProbe:
    """Fit ``W`` and ``b`` that minimise ``n loss(x W + b) + |W|^2 / (2 C)`` over standardised features ``x``.

    ``C`` is the one of :data:`STRENGTHS` with the lowest loss of documents that are held out. Standardising is folded
    into the weights. With the mean cross-entropy, it is scikit-learn's ``LogisticRegression`` behind a
    ``StandardScaler``, of two classes with ``2 C``, as these have weights each.

    Args:
        features: (n, F).
        labels: (n,) or (n, C), as the loss takes them.
        loss: mean over documents.
        outputs: C.
        folds: numbers of the documents that are held out together; none: the strength is 0.01.
        one_scale: divide all features by the root of their mean variance, not each by its own deviation.
    """
    exact = torch.float64 if len(features) <= _FEW else torch.float32
    x = features.to(exact)
    tried: list[tuple[float, float, Tensor]] = []  # loss, strength, outputs of what was held out
    parts = [_Part.of(x, labels, loss, outputs, fold, one_scale) for fold in folds]
    for strength in STRENGTHS if parts else ():
        losses = [part.held_out_loss(strength) for part in parts]
        sizes = [len(part.rows) for part in parts]
        average = sum(value * size for value, size in zip(losses, sizes, strict=True)) / sum(sizes)
        tried.append((average, strength, torch.cat([part.found for part in parts])))
        best = min(range(len(tried)), key=lambda number: tried[number][0])
        if len(tried) - 1 - best >= _WORSE:
            break
    held, strength, found = min(tried, key=lambda one: one[0]) if tried else (float("nan"), 1e-2, x[:0, :1])
    frame = _Frame.of(x, one_scale)
    z = frame.apply(x)
    weight, bias = frame.undone(*_minimum(z, labels, loss, strength, _zeros(z, outputs)))
    rows = torch.cat([part.rows for part in parts]) if parts else torch.zeros(0, dtype=torch.long)
    return LinearProbe(weight.T, bias, strength, held, rows, found)


def inner_folds(keys: Sequence[object], groups: Sequence[object], *, seed: int = 0) -> list[list[int]]:
    """Return the documents of each fold, such that every fold has about as many of each key; none if that cannot be.

    Of many documents there is the first fold alone. Those of one group are in one fold.

    >>> [sorted(fold) for fold in inner_folds(["a", "a", "b", "b"], range(4))]
    [[0, 2], [1, 3]]
    """
    units: dict[object, list[int]] = {}
    for number in range(len(keys)):
        units.setdefault(groups[number], []).append(number)
    order = np.random.default_rng(seed).permutation(len(units)).tolist() if seed else range(len(units))
    members = list(units.values())
    by_key = sorted((members[place] for place in order), key=lambda unit: str(keys[unit[0]]))
    counts = np.unique([str(keys[unit[0]]) for unit in by_key], return_counts=True)[1]
    count = min(FOLDS, int(counts.max()) if counts.max() > 1 else len(by_key))
    if count < 2:
        return []
    folds = [[number for unit in by_key[fold::count] for number in unit] for fold in range(count)]
    return folds[:1] if len(keys) > _FEW else folds


@dataclass
class _Part:
    """One fold: the others, standardised, to fit, and itself to measure; each strength starts where the last ended."""

    x: Tensor
    labels: Tensor
    held: Tensor
    held_labels: Tensor
    rows: Tensor
    loss: Loss
    start: tuple[Tensor, Tensor]
    found: Tensor

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, loss: Loss, outputs: int, fold: Sequence[int], one_scale: bool) -> _Part:
        rows = torch.tensor(sorted(fold))
        others = torch.ones(len(x), dtype=torch.bool)
        others[rows] = False
        frame = _Frame.of(x[others], one_scale)
        rest, held = frame.apply(x[others]), frame.apply(x[rows])
        return cls(rest, labels[others], held, labels[rows], rows, loss, _zeros(rest, outputs), held[:, :0])

    def held_out_loss(self, strength: float) -> float:
        """Fit the others and return the mean loss of the fold."""
        self.start = _minimum(self.x, self.labels, self.loss, strength, self.start)
        weight, bias = self.start
        self.found = self.held @ weight + bias
        return float(self.loss(self.found, self.held_labels))


def _zeros(x: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    return x.new_zeros(x.shape[1], outputs), x.new_zeros(outputs)


@dataclass(frozen=True)
class _Frame:
    """How features are standardised; and where there are fewer documents, turned to these alone.

    Attributes:
        mean: (F,).
        scale: (F,); 1 for a feature that is the same everywhere.
        basis: orthonormal columns that span the documents (F, n), beside which no weight lies; None for all F.
    """

    mean: Tensor
    scale: Tensor
    basis: Tensor | None

    @classmethod
    def of(cls, x: Tensor, one_scale: bool) -> _Frame:
        mean, scale = x.mean(dim=0), x.std(dim=0, correction=0)
        if one_scale:
            scale = scale.square().mean().sqrt().expand_as(scale)
        scale = torch.where(scale > 1e-6, scale, torch.ones_like(scale))
        is_wide = len(x) < x.shape[1]
        return cls(mean, scale, torch.linalg.qr(((x - mean) / scale).T).Q if is_wide else None)

    def apply(self, x: Tensor) -> Tensor:
        standard = (x - self.mean) / self.scale
        return standard if self.basis is None else standard @ self.basis

    def undone(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and bias of the features as they were given."""
        weight = (weight if self.basis is None else self.basis @ weight) / self.scale[:, None]
        return weight, bias - self.mean @ weight


def _minimum(
    x: Tensor, labels: Tensor, loss: Loss, strength: float, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return weights (F, C) and bias (C,) at the minimum of the penalised loss, by L-BFGS."""
    from scipy.optimize import minimize

    penalty, size = 1 / (2 * strength * len(x)), start[0].numel()

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        both = torch.from_numpy(numbers).to(x.dtype).requires_grad_()
        weight = both[:size].reshape(start[0].shape)
        value = loss(x @ weight + both[size:], labels) + penalty * weight.square().sum()
        (gradient,) = torch.autograd.grad(value, both)
        return value.item(), gradient.double().numpy()

    with torch.enable_grad():
        first = torch.cat([part.flatten() for part in start]).double().numpy()
        options = {"maxiter": _ITERATIONS, "ftol": 1e-12, "gtol": 1e-7}
        found = torch.from_numpy(minimize(objective, first, jac=True, method="L-BFGS-B", options=options).x).to(x.dtype)
    return found[:size].reshape(start[0].shape), found[size:]
