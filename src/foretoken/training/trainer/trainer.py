"""The Trainer as every run uses it: bucketed batches, a learning rate for the head, honest save errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import EvalLoopOutput

from foretoken.errors import SaveError
from foretoken.training.model.load import is_head
from foretoken.training.problems import Problem
from foretoken.training.problems.metrics import greater_is_better
from foretoken.training.recipe.recipe import Recipe, TrainingOptions
from foretoken.training.run.checkpoints import best_in, remove_checkpoint, rotate, seal
from foretoken.training.tokens.batches import BucketSampler, ShuffleSampler
from foretoken.training.tokens.new_tokens import rows_alone
from foretoken.training.trainer.average import DocumentMean
from foretoken.training.trainer.loaders import measured_batches, training_batches
from foretoken.training.trainer.offload import OffloadedActivations
from foretoken.training.trainer.short_attention import Float32Attention
from foretoken.tuner.auxiliary import AuxiliaryLossCallback


def make_trainer(
    recipe: Recipe,
    model: PreTrainedModel | PeftModel,
    tables: Mapping[str, Dataset],
    problem: Problem,
    tokenizer: PreTrainedTokenizerBase,
    *,
    checkpoints: Path,
    callbacks: list[TrainerCallback],
) -> RecipeTrainer:
    """Return the Trainer of a run; validation and test are expected in an order that is cheap to pad."""
    options = recipe.training
    if options.early_stopping_patience is not None:
        callbacks = [*callbacks, EarlyStoppingCallback(options.early_stopping_patience)]
    trainer = RecipeTrainer(
        options,
        problem,
        model=model,
        args=training_arguments(options, checkpoints),
        data_collator=problem.collator(tokenizer, model),
        train_dataset=tables["train"],
        eval_dataset=tables["validation"],
        compute_metrics=None if by_loss_alone(options, problem) else metrics_function(problem, tables["validation"]),
        callbacks=[AuxiliaryLossCallback(), _BestByStep(), *callbacks],  # the first adds to the log that others see
    )
    trainer.remove_callback(ProgressCallback)  # ours draws on stderr and leaves stdout to results
    trainer.remove_callback(PrinterCallback)
    return trainer


def training_arguments(options: TrainingOptions, checkpoints: Path) -> TrainingArguments:
    """Translate our options into transformers' names."""
    cuda = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=options.epochs,
        max_steps=options.max_steps or -1,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.eval_batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        warmup_steps=_warmup(options.warmup_ratio),
        weight_decay=options.weight_decay,
        lr_scheduler_type=options.lr_scheduler,
        max_grad_norm=options.max_grad_norm,
        metric_for_best_model=options.metric,
        greater_is_better=greater_is_better(options.metric),
        bf16=options.precision == "bf16",
        seed=options.seed,
        use_cpu=not (cuda or torch.backends.mps.is_available()),
        dataloader_pin_memory=cuda,
        load_best_model_at_end=True,
        restore_callback_states_from_checkpoint=True,
        include_num_input_tokens_seen="non_padding",
        remove_unused_columns=False,
        label_names=["labels"],
        report_to="none",
        disable_tqdm=True,
        **_rhythm(options.eval_every),
        **_checkpointing(options.gradient_checkpointing),
    )


class RecipeTrainer(Trainer):
    """A Trainer with our batches and parameter groups, whose step is the mean over all items of its documents.

    Items are what the problem's loss is a mean over: documents, or tagged words.
    """

    def __init__(self, options: TrainingOptions, problem: Problem, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.options = options
        self.problem = problem
        # Their classification losses are means. Left to itself, the Trainer takes any model with **kwargs for one that
        # divides by the items of all micro-batches, and the loss of k accumulated batches is k times too large.
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = False
        self.step_items = 0
        self.train_loss, self.eval_loss = DocumentMean(), DocumentMean()

    def get_train_dataloader(self) -> DataLoader:
        """Return batches by documents, or by tokens where the recipe names a number."""
        budget = self.options.tokens_per_batch
        return super().get_train_dataloader() if budget is None else training_batches(self, budget, self.options.seed)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return batches by documents, or by tokens where the recipe names a number."""
        table = self.eval_dataset if eval_dataset is None else eval_dataset
        return measured_batches(self, table, self.eval_budget) or super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return batches by documents, or by tokens where the recipe names a number."""
        return measured_batches(self, test_dataset, self.eval_budget) or super().get_test_dataloader(test_dataset)

    @property
    def eval_budget(self) -> int | None:
        """Tokens per forward pass of an evaluation; several processes share the documents out by their number."""
        return self.options.eval_budget if self.args.world_size == 1 else None

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of a step, and count its items over all processes."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.step_items = sum(self.problem.items(batch) for batch in batches)
        if self.args.world_size > 1:
            own = torch.tensor([self.step_items], device=device)
            self.step_items = int(self.accelerator.gather(own).sum())
        return batches, items

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the problem's loss, a mean over the batch's items, and its logits where they are asked for."""
        loss, logits = self.problem.forward(model, inputs)
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Weigh a micro-batch by its share of the step's items; the mean over processes is taken afterwards."""
        items = self.problem.items(inputs)
        share = items * self.args.world_size / self.step_items
        self.current_gradient_accumulation_steps: Any = 1 / share  # what the Trainer divides the loss by
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.train_loss.add(loss / share, documents=items)
        return loss

    def log(self, logs: dict[str, float], *rest: Any, **given: Any) -> None:
        """Log the mean loss over the documents since the last log, in place of the mean over steps."""
        if "loss" in logs:
            mean = self.train_loss.take(self.accelerator.gather if self.args.world_size > 1 else None)
            logs = logs | ({} if mean is None else {"loss": mean})
        super().log(logs, *rest, **given)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """Note the loss with the number of items that it is of; generate texts where they are asked for."""
        loss, found, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if loss is not None:
            self.eval_loss.add(loss, documents=self.problem.items(inputs))
        if self.problem.generates and not prediction_loss_only:
            with torch.no_grad(), self.compute_loss_context_manager():
                found = self.problem.predict(self.accelerator.unwrap_model(model), self._prepare_inputs(inputs))
        return loss, found, labels

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Measure; the loss is the mean over all items, whatever the sizes of the batches."""
        self.eval_loss = DocumentMean()
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        mean = self.eval_loss.take(self.accelerator.gather if self.args.world_size > 1 else None)
        if output.metrics is not None and mean is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = mean
        return output

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Add to the Trainer's own contexts what changes how activations are saved or attention is computed."""
        contexts: contextlib.ExitStack = super().compute_loss_context_manager()
        if self.options.activation_offload and self.is_in_train:
            model: Any = self.model
            contexts.enter_context(OffloadedActivations(model))
        # for CPUs alone: the mode sees every call of PyTorch. A checkpoint recomputes outside of it, and wants the same
        on_cpu = self.args.device.type == "cpu"
        if on_cpu and self.options.precision == "bf16" and not self.options.gradient_checkpointing:
            contexts.enter_context(Float32Attention())
        return contexts

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> BucketSampler:
        table: Any = self.train_dataset if train_dataset is None else train_dataset
        sampler = BucketSampler if self.options.bucket_by_length else ShuffleSampler
        # over all processes: a step has the documents that a single process with the same global batch would give it
        per_step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return sampler(table["length"], batch_size=per_step, seed=self.options.seed)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give the head its own learning rate where the recipe names one."""
        made = super().create_optimizer(model)
        if self.options.head_learning_rate is not None:
            own: Any = self.model
            named = {id(parameter): name for name, parameter in own.named_parameters()}
            groups = [_split_head(group, named, own, self.options) for group in made.param_groups]
            made.param_groups[:] = [part for parts in groups for part in parts if part["params"]]
        return made

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save the embeddings of new tokens without the table that they are rows of."""
        with rows_alone(self.accelerator.unwrap_model(self.model)):
            super()._save(output_dir, state_dict)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save and seal; a checkpoint that could not be written to its end is removed and said in one line."""
        checkpoints = Path(str(self.args.output_dir))
        folder = checkpoints / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # every process adds the state of its random numbers
            if self.args.should_save:
                seal(folder)
                rotate(checkpoints, self.state.best_global_step)
        except SaveError:
            remove_checkpoint(folder)
            raise
        except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own errors
            remove_checkpoint(folder)
            raise SaveError(f"cannot write {folder}: {' '.join(str(error).split())}") from error

    def _load_best_model(self) -> None:
        """Load the weights of the best step from the run's own folder.

        Raises:
            SaveError: they are gone or damaged.
        """
        step = self.state.best_global_step
        if step:
            self.load_weights(best_in(Path(str(self.args.output_dir)), step))

    def load_weights(self, checkpoint: Path) -> None:
        """Put the weights of a checkpoint into the model."""
        self.state.best_model_checkpoint = str(checkpoint)
        super()._load_best_model()


class _BestByStep(TrainerCallback):
    """Name the best checkpoint by where it is now: the state of a checkpoint has the place of its time."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Put the place into the state."""
        if state.best_global_step:
            state.best_model_checkpoint = str(Path(str(args.output_dir)) / f"checkpoint-{state.best_global_step}")


def _split_head(
    group: dict[str, Any], named: Mapping[int, str], model: nn.Module, options: TrainingOptions
) -> list[dict[str, Any]]:
    head = [parameter for parameter in group["params"] if is_head(named[id(parameter)], model)]
    rest = [parameter for parameter in group["params"] if not is_head(named[id(parameter)], model)]
    return [group | {"params": rest}, group | {"params": head, "lr": options.head_learning_rate}]


def _rhythm(eval_every: str | int) -> dict[str, Any]:
    """Log, evaluate and save at the same steps: the best checkpoint must be one that was measured."""
    names = ("logging", "eval", "save")
    if eval_every == "epoch":
        return {f"{name}_strategy": "epoch" for name in names}
    return {f"{name}_strategy": "steps" for name in names} | {f"{name}_steps": eval_every for name in names}


def _checkpointing(wanted: bool) -> dict[str, Any]:
    """Turn gradient checkpointing on under the name that this transformers has for it."""
    if not wanted:
        return {}
    known = {item.name for item in fields(TrainingArguments)}
    name = "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


def _warmup(ratio: float) -> float:
    """Return the share as transformers wants it: below 1, as 1 would be a single step."""
    return min(ratio, 1 - 1e-9)


def by_loss_alone(options: TrainingOptions, problem: Problem) -> bool:
    """Tell whether validation needs no predictions: generating texts takes many times as long as their loss."""
    return problem.generates and options.metric == "loss"


def metrics_function(problem: Problem, table: Dataset) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return what the Trainer calls with the logits and labels of validation, which it reads in the table's order."""
    groups = table["group"] if "group" in table.column_names else None

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        logits, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        outputs, found = problem.decode(logits, labels)
        return problem.measure(outputs, problem.labels_of(table) if found is None else found, groups)

    return compute
