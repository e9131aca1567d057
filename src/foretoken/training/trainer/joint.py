"""Several runs that are trained at once: their steps wait for each other, and share the pass through the frozen body.

Every run is a Trainer of its own, with its own batches, optimizer, schedule and evaluations. It sees what it would see
alone, to rounding: the gradients of its documents reach its own adapter and head alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from accelerate.state import GradientState
from peft import PeftModel
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.training.trainer.turns import Turns
from foretoken.tuner import ApartBody, JointBody

Context: TypeAlias = Callable[[], AbstractContextManager[object]]
Ask: TypeAlias = "Callable[[Question], Any]"


@dataclass(frozen=True)
class Ready:
    """A run has its model, and is about to take its first step."""

    model: PeftModel


@dataclass(frozen=True)
class Forward:
    """A run asks for its documents' last hidden states; ``context`` is what its forward passes run in."""

    inputs: Mapping[str, Tensor]
    context: Context


@dataclass(frozen=True)
class Backward:
    """A run knows the gradient of its loss by these states; None where nothing depends on them."""

    gradient: Tensor | None


Question: TypeAlias = Ready | Forward | Backward


class JointPass:
    """One run's side: the states of its documents come from the pass that all runs share.

    Args:
        model: of the run.
        ask: the runs' :meth:`Turns.ask`.
    """

    def __init__(self, model: PeftModel, ask: Ask) -> None:
        self.body, self.others = ApartBody(model), ask
        self.states: Tensor | None = None
        self.ask(Ready(model))

    def ask(self, question: Question) -> Any:
        """Wait until all runs have come as far.

        accelerate keeps one state for all Trainers of a process: whether this step ends an accumulation is this run's.
        """
        state = GradientState()
        own = state.sync_gradients
        answer = self.others(question)
        state.sync_gradients = own
        return answer

    @contextmanager
    def forward(self, context: Context) -> Iterator[None]:
        """Let the model's forward pass in this block be the shared one."""

        def compute(inputs: Mapping[str, Tensor]) -> Tensor:
            states = self.states = self.ask(Forward(inputs, context))
            return states

        with self.body.computed(compute):
            yield

    def with_auxiliary(self, loss: Tensor) -> Tensor:
        """Add to a loss what the adapter brings along."""
        more = self.body.auxiliary_loss()
        return loss if more is None else loss + more.to(device=loss.device, dtype=loss.dtype)

    def backward(self) -> None:
        """Take the gradient on from the states to the adapter, with those of the other runs."""
        states, self.states = self.states, None
        if states is not None:
            self.ask(Backward(states.grad))


def train_together(runs: Sequence[Turns[Question, Any]]) -> None:
    """Run all to their ends; those that are not over take each step together.

    Raises:
        BaseException: what one of them raised; the others are stopped.
    """
    try:
        for run in runs:
            advance(run)
        joint: JointBody | None = None
        while active := [run for run in runs if not run.is_over]:
            if joint is None:
                joint = JointBody({run.name: run.question.model for run in active if isinstance(run.question, Ready)})
                for run in active:
                    advance(run)
            else:
                step(joint, active)
    except BaseException as error:
        for run in runs:
            run.stop(error if isinstance(error, KeyboardInterrupt) else Stopped(f"another task failed: {error}"))
        raise


class Stopped(Exception):  # noqa: N818 - no error of this run
    """Another run has failed, and this one ends with it."""


def step(joint: JointBody, runs: Sequence[Turns[Question, Any]]) -> None:
    """Compute the states that runs ask for, and take their gradients back."""
    asked = {run.name: run.question for run in runs if isinstance(run.question, Forward)}
    with next(iter(asked.values())).context():
        states = joint({name: question.inputs for name, question in asked.items()})
    for run in runs:
        own = states[run.name]
        advance(run, own.detach().requires_grad_(own.requires_grad))
    known = {run.name: run.question.gradient for run in runs if isinstance(run.question, Backward)}
    pairs = [(states[name], one) for name, one in known.items() if one is not None]
    if pairs:
        torch.autograd.backward([own for own, _ in pairs], [one for _, one in pairs])
    for run in runs:
        if not run.is_over:
            advance(run)


def advance(run: Turns[Question, Any], answer: object = None) -> None:
    """Give a run its turn; what ends it with an error ends all."""
    run.go(answer)
    if run.is_over:
        try:
            run.result()
        except ForetokenError as error:
            raise named(run.name, error) from error


def named(name: str, error: ForetokenError) -> ForetokenError:
    """Return an error that says whose it is."""
    try:
        return type(error)(f"{name}: {error}")
    except TypeError:  # a class with arguments of its own
        return ForetokenError(f"{name}: {error}")
