"""The one training path: from a recipe to a folder with the adapter, its record and its predictions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken.errors import ConfigError, RecipeError, SaveError
from foretoken.files import check_writable
from foretoken.metrics.scaling import Scaling
from foretoken.training.model.load import quiet_transformers
from foretoken.training.recipe.idle import SayIdle
from foretoken.training.recipe.recipe import Recipe, checked
from foretoken.training.run import record as records
from foretoken.training.run.calibrate import fitted
from foretoken.training.run.checkpoints import STATE, best_of, is_over, last_whole, newest_first, remove_checkpoints
from foretoken.training.run.fingerprint import refuse_changes
from foretoken.training.run.folder import (
    CHECKPOINTS,
    PREDICTIONS,
    drop_aside,
    held,
    is_tidy,
    is_vacant,
    set_aside,
)
from foretoken.training.run.prepare import MEASURED, Prepared, facts, prepare
from foretoken.training.run.results import (
    Prediction,
    measures,
    predict_split,
    save_model,
    timings,
    write_predictions,
)
from foretoken.training.trainer.loaders import check_processes
from foretoken.training.trainer.memory import PeakMemory
from foretoken.training.trainer.memory import describe as describe_memory
from foretoken.training.trainer.progress import Bar, LogLast, StepTimes
from foretoken.training.trainer.trainer import RecipeTrainer, make_trainer

log = logging.getLogger(__name__)
_VERSIONS = ("foretoken", "torch", "transformers", "peft")
_SMALLER = (
    "lower training.batch_size, training.tokens_per_batch or max_length, or set training.gradient_checkpointing: true, "
    "or training.activation_offload: true"
)


def train(
    recipe: Recipe,
    *,
    restart: bool = False,
    accept_changed: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    measure_test: bool = True,
) -> dict[str, Any]:
    """Run a recipe and return its record; a killed run goes on, a finished one is not repeated.

    Args:
        recipe: what to run.
        restart: begin anew; what an earlier run of the same name left is deleted once the new one has taken a step.
        accept_changed: go on though data, model or versions are not those that the run began with.
        callbacks: told of every evaluation; :class:`~foretoken.training.run.record.Pruned` ends the run.
        measure_test: without it the test split is not looked at; see :func:`foretoken.inference.evaluate.measure_test`.

    Raises:
        RecipeError: the folder holds a run of another recipe.
        RunBusyError: another process works on this run.
        RunRecordError: the record of the earlier run is damaged.
        ConfigError: batches by tokens, where the processes or GPUs share documents out by their number.
        Pruned: a callback ended the run.
        ForetokenError: data, model or method cannot be used, or something cannot be written.
    """
    recipe = checked(recipe)
    check_processes(recipe.training, processes=records.processes(), gpus=torch.cuda.device_count())
    if not restart and is_tidy(recipe.run_folder) and (finished := _finished(recipe)) is not None:
        return finished
    check_writable(recipe.run_folder)
    alone = records.is_main_process()
    with held(recipe.run_folder) if alone else nullcontext(), quiet_transformers():
        if not restart and (finished := _finished(recipe)) is not None:
            if alone:  # killed while it did this itself
                remove_checkpoints(_checkpoints(recipe))
            return finished
        _refuse_foreign(recipe.run_folder)
        going_on = None if restart else _going_on(recipe)
        prepared = prepare(recipe)
        if going_on is not None:
            before = (records.checked_record(recipe.run_folder) or {}).get("fingerprint")
            refuse_changes(recipe.run_folder, before, _fingerprint(prepared), accept=accept_changed)
        with set_aside(recipe.run_folder) if restart and alone else nullcontext():
            return _train(recipe, prepared, going_on, callbacks, MEASURED if measure_test else MEASURED[:1])


def _train(
    recipe: Recipe,
    prepared: Prepared,
    going_on: Path | None,
    callbacks: Sequence[TrainerCallback],
    measured: Sequence[str],
) -> dict[str, Any]:
    memory = PeakMemory()
    record = records.RunRecord.start(recipe)
    record.update(**facts(prepared), fingerprint=_fingerprint(prepared))
    try:
        _run(recipe, prepared, going_on, record, memory, callbacks, measured)
    except records.Pruned as reason:
        record.end(records.PRUNED, reason)
        raise
    except KeyboardInterrupt:
        record.end(records.INTERRUPTED)
        log.warning("interrupted; the same command goes on from the last checkpoint")
        raise
    except torch.OutOfMemoryError as error:
        record.end(records.FAILED, error)
        raise ConfigError(f"the GPU's memory is full; {_SMALLER}") from error
    except BaseException as error:
        record.end(records.FAILED, error)
        raise
    record.end(records.FINISHED)
    if records.is_main_process():
        remove_checkpoints(_checkpoints(recipe))
    return record.values


def _run(
    recipe: Recipe,
    prepared: Prepared,
    going_on: Path | None,
    record: records.RunRecord,
    memory: PeakMemory,
    callbacks: Sequence[TrainerCallback],
    measured: Sequence[str],
) -> None:
    bar = Bar(recipe.training.metric)
    watchers = [bar, records.Live(record, recipe.training.metric), _DropAside(recipe.run_folder), *callbacks]
    try:
        trainer = _fit(recipe, prepared, going_on, watchers)
        predictions = {name: predict_split(trainer, prepared.tables[name]) for name in measured}
    finally:
        bar.close()
    scaling = fitted(recipe.calibration, predictions["validation"])
    if records.is_main_process():
        save_model(prepared, record, recipe, scaling)
        write_predictions(recipe.run_folder / PREDICTIONS, predictions)
    record.update(**_outcome(recipe, trainer, predictions, scaling), memory=memory.measured())
    log.info("peak memory: %s", describe_memory(record.values["memory"]))


def _fit(recipe: Recipe, prepared: Prepared, checkpoint: Path | None, watchers: list[TrainerCallback]) -> RecipeTrainer:
    """Train to the end and put the best weights into the model."""
    callbacks = [SayIdle(recipe, prepared), LogLast(), StepTimes(), *watchers]
    trainer = make_trainer(
        recipe,
        prepared.model,
        prepared.tables,
        prepared.problem,
        prepared.tokenizer,
        checkpoints=_checkpoints(recipe),
        callbacks=callbacks,
    )
    if checkpoint is not None and is_over(checkpoint):
        _restore(trainer, checkpoint)
        return trainer
    if checkpoint is not None:
        log.info("going on from %s", checkpoint.name)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return trainer


def _restore(trainer: RecipeTrainer, checkpoint: Path) -> None:
    """Take up a run that was killed after its last step: its best weights, its history."""
    log.info("training had ended at %s; measuring its best checkpoint", checkpoint.name)
    trainer.state = TrainerState.load_from_json(str(checkpoint / STATE))
    trainer._load_callback_state()
    trainer.load_weights(best_of(checkpoint) or checkpoint)


class _DropAside(TrainerCallback):
    """Delete what an earlier run left, as soon as the new one has taken a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Delete it; later steps find nothing."""
        if records.is_main_process():
            drop_aside(self.folder)


def _finished(recipe: Recipe) -> dict[str, Any] | None:
    """Return the record of a finished run of this recipe.

    Raises:
        RecipeError: the finished run is of another recipe.
    """
    folder = recipe.run_folder
    before = records.checked_record(folder)
    if before is None or before["status"] != records.FINISHED:
        return None
    _refuse_other_recipe(recipe, before)
    log.info("%s is finished and is not repeated; --restart begins anew", folder)
    return before


def _going_on(recipe: Recipe) -> Path | None:
    """Return the checkpoint that an unfinished run of this recipe goes on from; None where it begins anew.

    Raises:
        SaveError: the best weights so far are gone.
        RecipeError: the run is of another recipe.
    """
    folder, before = recipe.run_folder, records.checked_record(recipe.run_folder)
    if before is None:
        return None
    checkpoint = last_whole(_checkpoints(recipe))
    if checkpoint is None:
        if newest_first(_checkpoints(recipe)):
            log.warning("%s has no checkpoint that can be used; training begins anew", folder)
        return None
    _refuse_other_recipe(recipe, before)
    return checkpoint


def _refuse_foreign(folder: Path) -> None:
    if not is_vacant(folder) and not (folder / records.FILE).is_file():
        raise SaveError(f"{folder} exists and holds no run; choose another `name` or `output`")


def _refuse_other_recipe(recipe: Recipe, before: Mapping[str, Any]) -> None:
    found = records.differing_keys(before["recipe"], records.plain(recipe))
    if found:
        head = f"{recipe.run_folder} holds a run of another recipe; choose another `name`"
        raise RecipeError(f"{head}, or --restart to throw it away", found)


def _fingerprint(prepared: Prepared) -> dict[str, str]:
    versions = records.versions()
    return {**prepared.fingerprint, **{name: versions[name] for name in _VERSIONS}}


def _checkpoints(recipe: Recipe) -> Path:
    return recipe.run_folder / CHECKPOINTS


def _outcome(
    recipe: Recipe, trainer: RecipeTrainer, predictions: Mapping[str, Prediction], scaling: Scaling | None
) -> dict[str, Any]:
    state = trainer.state
    return {
        "best": {
            "metric": recipe.training.metric,
            "value": state.best_metric,
            "step": state.best_global_step,
        },
        "steps": state.global_step,
        "epochs": records.history(state.log_history),
        **measures(predictions, scaling),
        "timings": timings(trainer, predictions),
    }
