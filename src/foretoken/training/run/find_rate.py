"""The search for a learning rate before a run: successive halving of short runs on part of its training documents."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

import torch
from datasets import Dataset
from torch import Tensor, nn

from foretoken.files import JsonObject
from foretoken.training.options import Recipe
from foretoken.training.run.prepare import Prepared
from foretoken.training.tokens.batches import by_length
from foretoken.training.trainer.make import make_trainer
from foretoken.training.trainer.trainer import RecipeTrainer

log = logging.getLogger(__name__)
ROUNDS = ((8, 10), (4, 20), (2, 40))  # candidates, and optimizer steps of each
_BELOW, _PER_DECADE = 4, 3  # candidates below the one in the middle, and in a factor of ten
_MOST_BEYOND = 3  # candidates outside that range
_FEWEST_HELD_OUT, _MOST_HELD_OUT = 16, 64  # documents that the losses are measured on
_NOISE = 2  # standard errors that another rate has to be better by

Losses: TypeAlias = "list[float]"  # of the documents held out
LossesAfter: TypeAlias = "Callable[[float, int], Losses]"


def find_rate(recipe: Recipe, prepared: Prepared, *, checkpoints: Path) -> JsonObject:
    """Return what a record says of a search around the recipe's learning rate; the model is left as it was.

    Every candidate starts from the same weights, sees the same batches with the same dropout, and follows the
    recipe's course of the learning rate to its end. What counts are the losses of documents that are held out; with
    too few of them there is no search.
    """
    began = time.perf_counter()
    tables = _tables(prepared.tables["train"], recipe.training.seed)
    tried: list[JsonObject] = []
    middle, train, held_out = recipe.training.peak_learning_rate, len(tables["train"]), len(tables["validation"])
    found: JsonObject = {"chosen": middle, "tried": tried, "documents": {"train": train, "held_out": held_out}}
    if held_out < _FEWEST_HELD_OUT:
        log.warning(
            "too few documents to search for a learning rate: a quarter of %d are %d, fewer than %d; it stays %g",
            *(train + held_out, held_out, _FEWEST_HELD_OUT, middle),
        )
        return found

    def trainer_of(rate: float, steps: int | None, tables: Mapping[str, Dataset]) -> RecipeTrainer:
        options = replace(recipe.training, learning_rate=rate, max_steps=steps, early_stopping_patience=None)
        return make_trainer(
            replace(recipe, training=options),
            prepared.model,
            tables,
            prepared.problem,
            prepared.tokenizer,
            checkpoints=checkpoints,
            callbacks=[],
            searching=True,
        )

    def losses_after(rate: float, steps: int) -> Losses:
        trainer = trainer_of(rate, steps or None, tables)
        with _put_back(prepared.model):
            if steps:
                trainer.train()
            return _losses(trainer)

    def noted(rate: float, steps: int) -> Losses:
        losses = losses_after(rate, steps)
        loss = fmean(losses)
        said = "" if loss <= start else ", which is not below the start's"
        log.info("learning rate %g: loss %.4f after %d steps%s", rate, loss, steps, said)
        tried.append({"rate": rate, "steps": steps, "loss": loss if math.isfinite(loss) else None})
        return losses

    log.info("trying learning rates on %d training documents; losses are those of %d others", train, held_out)
    start = fmean(losses_after(middle, 0))
    whole = recipe.training.max_steps or _steps(trainer_of(middle, None, prepared.tables))
    chosen, why = halve(candidates(middle), noted, start=start, whole=whole)
    log.info("the learning rate %s %g: %s", "stays" if chosen == middle else "is", chosen, why)
    return found | {"chosen": chosen, "start_loss": start, "seconds": time.perf_counter() - began}


def no_search(recipe: Recipe, why: str) -> JsonObject:
    """Return what a record says of a search that is left out, and say why."""
    log.warning("no learning rate is searched: %s", why)
    return {"chosen": recipe.training.peak_learning_rate, "tried": []}


def candidates(middle: float) -> list[float]:
    """Return learning rates at equal distances on a logarithmic scale, in two digits.

    >>> candidates(0.01)
    [0.00046, 0.001, 0.0022, 0.0046, 0.01, 0.022, 0.046, 0.1]
    """
    return [_scaled(middle, index - _BELOW) for index in range(ROUNDS[0][0])]


def halve(rates: Sequence[float], losses_after: LossesAfter, *, start: float, whole: int) -> tuple[float, str]:
    """Return the rate to take, and why.

    A round keeps the best of the round before it, and the one in the middle of the first, the method's own. A loss that
    is not finite or above the start's ends a candidate. Where the lowest loss is at an end of the range, the rate
    beyond it is tried as well. The own rate stays unless another is better by more than the noise.

    Args:
        rates: candidates, in order.
        losses_after: the losses of the documents held out after so many steps with a rate.
        start: the mean loss before training.
        whole: steps of the run that the rate is for; no round has more.

    >>> halve([0.01, 0.1, 1.0, 10.0, 100.0], lambda rate, steps: [abs(rate - 10) / steps] * 2, start=0.5, whole=99)[0]
    10.0
    """
    own, known, alive = rates[min(_BELOW, len(rates) - 1)], sorted(rates), list(rates)
    measured: dict[float, Losses] = {}
    for most, steps in _rounds(whole):
        measured = {rate: losses_after(rate, steps) for rate in dict.fromkeys((*alive[:most], own))}
        while (alive := _below(measured, start)) and alive[0] in (known[0], known[-1]):
            if len(known) == len(rates) + _MOST_BEYOND:
                return own, f"the loss still falls at {alive[0]:g}, where the search ends"
            beyond = _scaled(alive[0], 1 if alive[0] == known[-1] else -1)
            known = sorted((*known, beyond))
            measured[beyond] = losses_after(beyond, steps)
        if not alive:
            return own, f"none lowered the loss of {start:.4f}"
        if alive == [own]:
            break
    if alive[0] == own:
        return own, "none is better"
    gain, noise = _gain(measured[own], measured[alive[0]])
    if gain <= _NOISE * noise:
        return (
            own,
            f"{alive[0]:g} is better by {gain:.4f}, within the noise ({noise:.4f}) of {len(measured[own])} documents",
        )
    return alive[0], f"the loss is lower than with {own:g} by {gain:.4f}, with a standard error of {noise:.4f}"


def _rounds(whole: int) -> list[tuple[int, int]]:
    """Return the rounds of a search for a run of so many steps: none is longer, and none is repeated.

    >>> _rounds(15)
    [(8, 10), (4, 15)]
    """
    rounds = [(most, min(steps, whole)) for most, steps in ROUNDS]
    return [one for index, one in enumerate(rounds) if index == 0 or one[1] > rounds[index - 1][1]]


def _below(measured: Mapping[float, Losses], start: float) -> list[float]:
    """Return the rates whose mean loss is not above the start's, the best first."""
    means = {rate: fmean(losses) for rate, losses in measured.items()}
    return sorted((rate for rate, mean in means.items() if mean <= start), key=means.__getitem__)  # NaN is not


def _gain(own: Losses, other: Losses) -> tuple[float, float]:
    """Return by how much other losses of the same documents are lower in the mean, and the standard error of that."""
    gains = [one - two for one, two in zip(own, other, strict=True)]
    if not all(map(math.isfinite, gains)):
        return math.inf, 0.0
    return fmean(gains), stdev(gains) / math.sqrt(len(gains))


def _scaled(rate: float, distance: int) -> float:
    return float(f"{rate * 10 ** (distance / _PER_DECADE):.2g}")


def _steps(trainer: RecipeTrainer) -> int:
    """Return how many optimizer steps a run has."""
    batches = math.ceil(len(trainer.get_train_dataloader()) / trainer.options.gradient_accumulation_steps)
    return math.ceil(batches * trainer.options.epochs)


def _losses(trainer: RecipeTrainer) -> Losses:
    """Return the loss of every document that is held out."""
    model = trainer.model.eval()
    losses = []
    for row in range(len(trainer.eval_dataset)):
        inputs = trainer.data_collator([trainer.eval_dataset[row]])
        with trainer.accelerator.autocast():
            loss: Any = trainer.prediction_step(model, inputs, prediction_loss_only=True)[0]
        losses.append(float(loss))
    return losses


def _tables(train: Dataset, seed: int) -> Mapping[str, Dataset]:
    """Divide the training documents into some to train on and others, longest first, to measure the loss on."""
    count = len(train)
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
