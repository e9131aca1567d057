"""The auxiliary loss in the Trainer's log.

It is a module of its own, as transformers' callbacks import peft, and cannot be imported while foretoken registers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken.tuner.auxiliary import auxiliary_loss_of


class AuxiliaryLossCallback(TrainerCallback):
    """Log ``auxiliary_loss`` beside ``loss``: its mean over the same steps, already contained in ``loss``.

    Pass it before the callbacks that report it, e.g. ``callbacks=[AuxiliaryLossCallback(), TensorBoardCallback()]``
    with ``report_to="none"``. Methods without an auxiliary loss add nothing to the log.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None  # stays on its device: `.item()` would wait for it at every step
        self.steps = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Forget the numbers of an earlier training."""
        self.total, self.steps = None, 0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the loss; it depends only on the parameters, so it is the same in every micro-batch of the step."""
        with torch.no_grad():
            value = auxiliary_loss_of(kwargs["model"])
        if value is not None:
            self.total = value if self.total is None else self.total + value
            self.steps += 1

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any] | None = None,
        **_: object,
    ) -> None:
        """Add the mean to a log of the training loss and to the history."""
        if self.total is None or logs is None or "loss" not in logs:
            return
        mean = self.total.item() / self.steps
        self.total, self.steps = None, 0
        logs["auxiliary_loss"] = mean
        state.log_history[-1]["auxiliary_loss"] = mean
