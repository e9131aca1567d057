"""The search for a learning rate before a run: successive halving of short runs on part of its training documents."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from foretoken.errors import ConfigError
from foretoken.files import JsonObject
from foretoken.training.recipe.recipe import Recipe
from foretoken.training.run.prepare import Prepared
from foretoken.training.tokens.batches import by_length
from foretoken.training.trainer.trainer import make_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from datasets import Dataset
    from torch import Tensor, nn

log = logging.getLogger(__name__)
ROUNDS = ((8, 10), (4, 20), (2, 40))  # candidates, and optimizer steps of each
_BELOW, _PER_DECADE = 4, 3  # candidates below the one in the middle, and in a factor of ten
_FEWEST, _MOST_HELD_OUT = 8, 64  # training documents at least; those that the losses are measured on


def find_rate(recipe: Recipe, prepared: Prepared, *, checkpoints: Path) -> JsonObject:
    """Return what a record says of a search around the recipe's learning rate; the model is left as it was.

    Every candidate starts from the same weights, sees the same batches with the same dropout, and follows the
    recipe's course of the learning rate to its end. What counts is the loss on documents that are held out.

    Raises:
        ConfigError: there are too few training documents to hold some out.
    """
    began = time.perf_counter()
    tables = _tables(prepared.tables["train"], recipe.training.seed)
    tried: list[JsonObject] = []

    def loss_after(rate: float, steps: int) -> float:
        options = replace(recipe.training, learning_rate=rate, max_steps=steps or None, early_stopping_patience=None)
        trainer = make_trainer(
            replace(recipe, training=options),
            prepared.model,
            tables,
            prepared.problem,
            prepared.tokenizer,
            checkpoints=checkpoints,
            callbacks=[],
            searching=True,
        )
        with _put_back(prepared.model):
            if steps:
                trainer.train()
            return float(trainer.evaluate()["eval_loss"])

    def noted(rate: float, steps: int) -> float:
        loss = loss_after(rate, steps)
        said = "" if loss <= start else ", which is not below the start's"
        log.info("learning rate %g: loss %.4f after %d steps%s", rate, loss, steps, said)
        tried.append({"rate": rate, "steps": steps, "loss": loss if math.isfinite(loss) else None})
        return loss

    middle, train, held_out = recipe.training.peak_learning_rate, len(tables["train"]), len(tables["validation"])
    log.info("trying learning rates on %d training documents; losses are those of %d others", train, held_out)
    start = loss_after(middle, 0)
    chosen = halve(candidates(middle), noted, start=start)
    if chosen is None:
        log.warning("no learning rate lowered the loss of %.4f; it stays %g", start, middle)
    else:
        log.info("the learning rate is %g", chosen)
    return {
        "chosen": middle if chosen is None else chosen,
        "start_loss": start,
        "tried": tried,
        "documents": {"train": train, "held_out": held_out},
        "seconds": time.perf_counter() - began,
    }


def candidates(middle: float) -> list[float]:
    """Return learning rates at equal distances on a logarithmic scale, in two digits.

    >>> candidates(0.01)
    [0.00046, 0.001, 0.0022, 0.0046, 0.01, 0.022, 0.046, 0.1]
    """
    return [float(f"{middle * 10 ** ((index - _BELOW) / _PER_DECADE):.2g}") for index in range(ROUNDS[0][0])]


def halve(rates: Sequence[float], loss_after: Callable[[float, int], float], *, start: float) -> float | None:
    """Return the rate with the lowest loss in the last round; None where none lowers the loss of the start.

    A round keeps the best of the round before it. A loss that is not finite or above the start's ends a candidate;
    where it ends all that were left, the best of the round before is returned.

    >>> halve([0.1, 1.0, 10.0], lambda rate, steps: abs(rate - 1) / steps, start=0.5)
    1.0
    """
    best, alive = None, list(rates)
    for most, steps in ROUNDS:
        losses = {rate: loss_after(rate, steps) for rate in alive[:most]}
        alive = sorted((rate for rate in losses if losses[rate] <= start), key=losses.__getitem__)  # NaN is not
        best = alive[0] if alive else best
        if len(alive) < 2:
            break
    return best


def _tables(train: Dataset, seed: int) -> Mapping[str, Dataset]:
    """Divide the training documents into some to train on and others, longest first, to measure the loss on."""
    count = len(train)
    if count < _FEWEST:
        raise ConfigError(
            f"--find-rate: {count} training documents; it takes {_FEWEST} or more. Name training.learning_rate instead"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = min(_MOST_HELD_OUT, count // 4)
    measured = train.select(order[:held_out])
    return {"train": train.select(order[held_out:]), "validation": measured.select(by_length(measured["length"]))}


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Put what the block trains, and the model's buffers, back to what they were."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors: dict[str, Tensor] = trained | dict(model.named_buffers())
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(before[name])
        model.zero_grad(set_to_none=True)
