"""A head that starts as the regularised linear model of what it reads of the training documents, before any step."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from foretoken.backbones.pooling import UNIT_MOMENTS
from foretoken.files import JsonObject
from foretoken.training.linear_probe import LinearProbe, fit_probe, inner_folds
from foretoken.training.problems.base import Problem
from foretoken.training.problems.classification import TextProblem
from foretoken.training.tokens.batches import by_length, cut
from foretoken.training.tokens.chunks import rows_at_once, tokens_at_once
from foretoken.training.tokens.padding import OFFSET
from foretoken.training.trainer.progress import progress_bar
from foretoken.tuner.heads import linear_head, pool_of, pooled_features

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadFit:
    """What the head of a model was fitted on.

    Attributes:
        probe: the linear model.
        labels: of the documents that it was fitted on, as the loss takes them.
        seconds: what that took, reading them included.
    """

    probe: LinearProbe
    labels: Tensor
    seconds: float

    def to_dict(self) -> JsonObject:
        """Return what a record says of it."""
        loss = self.probe.loss if np.isfinite(self.probe.loss) else None
        values = {"documents": len(self.labels), "strength": self.probe.strength, "held_out_loss": loss}
        return values | {"seconds": round(self.seconds, 3)}


def fit_head(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    table: Dataset,
    *,
    bf16: bool = False,
    seed: int = 0,
) -> HeadFit | None:
    """Fit the head to the training documents as the model reads them now; None where it has none of ours to fit.

    The head is then the linear model itself. Before its first step, a method whose start changes nothing is thus
    logistic regression on the frozen model's states; a prefix that changes them, logistic regression on its own.
    """
    if not isinstance(problem, TextProblem) or (head := linear_head(model)) is None:
        return None
    began = time.perf_counter()
    features, labels = read_features(model, tokenizer, problem, table, bf16=bf16)
    groups = table["group"] if "group" in table.column_names else [None] * len(table)
    units = [group if group is not None else own for group, own in zip(groups, table["id"], strict=True)]
    folds = inner_folds(_strata(labels), units, seed=seed)  # rarer documents may be there several times
    place = "cuda" if head.weight.is_cuda else "cpu"  # of others some know no float64
    given = features.to(place), labels.to(place), problem.loss, head.out_features, folds
    probe = fit_probe(*given, one_scale=pool_of(model) == UNIT_MOMENTS)  # lengths of 1 are a scale
    with torch.no_grad():
        head.weight.copy_(probe.weight)
        head.bias.copy_(probe.bias)
    fit = HeadFit(probe, labels, time.perf_counter() - began)
    log.info(
        "the head starts as the linear model of %d documents (C %g, loss of held-out ones %.4f), fitted in %.1f s",
        *(len(labels), probe.strength, probe.loss, fit.seconds),
    )
    return fit


def scale_head(model: nn.Module, share: float) -> None:
    """Multiply the logits of a fitted head by a number."""
    head = linear_head(model)
    assert head is not None
    with torch.no_grad():
        head.weight.mul_(share)
        head.bias.mul_(share)


@torch.no_grad()
def read_features(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    table: Dataset,
    *,
    bf16: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return what the head reads of each document of a table (n, F), and the labels as the loss takes them."""
    collate = problem.collator(tokenizer, model)
    device = next(model.parameters()).device
    lengths, is_training = table["length"], model.training
    batches = cut(by_length(lengths), lengths, tokens_at_once(device))
    features: list[Tensor] = [torch.empty(0)] * len(lengths)
    labels: list[Tensor] = [torch.empty(0)] * len(lengths)
    model.eval()
    with progress_bar("reading") as bar:
        task = bar.add_task("", total=len(lengths), note="")
        for batch in batches:
            inputs = {name: value.to(device) for name, value in collate([table[row] for row in batch]).items()}
            given, owner = inputs.pop("labels"), inputs.pop("owner", None)
            inputs.pop(OFFSET, None)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                found = pooled_features(model, inputs, owner, rows=rows_at_once(inputs))
            for row, vector, label in zip(batch, found.float().cpu(), given.cpu(), strict=True):
                features[row], labels[row] = vector, label
            bar.advance(task, len(batch))
    model.train(is_training)
    return torch.stack(features), torch.stack(labels)


def _strata(labels: Tensor) -> Sequence[object]:
    """Return what folds are to have alike: the class, the rarest label of several, or where a number stands."""
    if labels.dim() == 1 and not labels.is_floating_point():
        return labels.tolist()
    if labels.dim() > 1 and bool(((labels == 0) | (labels == 1)).all()):
        rarity = labels.sum(dim=0).where(labels.sum(dim=0) > 0, torch.tensor(float("inf")))
        return (labels * (1 / rarity)).argmax(dim=1).where(labels.any(dim=1), torch.tensor(-1)).tolist()
    ranks = labels.reshape(len(labels), -1)[:, 0].argsort().argsort()
    return (ranks * 10 // max(1, len(ranks))).tolist()
