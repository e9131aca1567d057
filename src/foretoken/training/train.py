"""The one training path: from a recipe to a folder with the adapter, its record and its predictions."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerState, set_seed

from foretoken.data.load import load
from foretoken.errors import ConfigError, RecipeError, SaveError
from foretoken.files import check_writable
from foretoken.training import record as records
from foretoken.training.adapter import attach
from foretoken.training.checkpoints import STATE, is_over, last_complete
from foretoken.training.engine import use_attention
from foretoken.training.loaders import check_processes
from foretoken.training.measure import check_metric
from foretoken.training.memory import PeakMemory
from foretoken.training.memory import describe as describe_memory
from foretoken.training.model import (
    base_model_folder,
    count_parameters,
    load_classifier,
    load_tokenizer,
    quiet_transformers,
)
from foretoken.training.precision import hold_frozen
from foretoken.training.progress import Bar, LogLast, StepTimes
from foretoken.training.recipe import Recipe, checked
from foretoken.training.results import Prediction, predict_split, save_model, timings, write_predictions
from foretoken.training.tokenise import (
    PaddingCollator,
    TokenRules,
    Truncation,
    chosen_max_length,
    token_rules,
    tokenise,
)
from foretoken.training.trainer import RecipeTrainer, make_trainer

log = logging.getLogger(__name__)
MEASURED = ("validation", "test")
_SMALLER = (
    "lower training.batch_size, training.tokens_per_batch or max_length, or set training.gradient_checkpointing: true, "
    "or training.activation_offload: true"
)


@dataclass(frozen=True)
class Prepared:
    """Everything a run needs before its first step."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    tables: Mapping[str, Dataset]
    truncations: Mapping[str, Truncation]
    labels: list[str]
    max_length: int
    base_model: str


def train(recipe: Recipe, *, restart: bool = False) -> dict[str, Any]:
    """Run a recipe and return its record; a killed run goes on, a finished one is not repeated.

    Args:
        recipe: what to run.
        restart: throw away what an earlier run of the same name left, instead of going on from it.

    Raises:
        RecipeError: the folder holds a run of another recipe.
        ConfigError: batches by tokens, where the processes or GPUs share documents out by their number.
        ForetokenError: data, model or method cannot be used, or something cannot be written.
    """
    recipe = checked(recipe)
    check_processes(recipe.training, processes=records.processes(), gpus=torch.cuda.device_count())
    finished = _earlier(recipe, restart=restart)
    if finished is not None:
        return finished
    check_writable(recipe.run_folder)
    with quiet_transformers():
        return _train(recipe)


def _train(recipe: Recipe) -> dict[str, Any]:
    memory = PeakMemory()
    prepared = prepare(recipe)
    record = records.RunRecord.start(recipe)
    record.update(**_facts(prepared))
    try:
        _run(recipe, prepared, record, memory)
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
    _remove_checkpoints(recipe)
    return record.values


def prepare(recipe: Recipe) -> Prepared:
    """Load and tokenise the data, load the model and attach the method, all from the recipe's seed."""
    if recipe.training.num_threads is not None:
        torch.set_num_threads(recipe.training.num_threads)
    splits = load(recipe.data)
    labels = splits["train"].features["label"].names
    check_metric(recipe.training.metric, len(labels))
    source = base_model_folder(recipe)
    use_attention(recipe.training.attention_engine, recipe.training.packing)
    set_seed(recipe.training.seed)
    model = load_classifier(source, labels, attention_dropout=recipe.training.attention_dropout)
    _check_activations(recipe, model)
    tokenizer = load_tokenizer(source, model.config)
    max_length = chosen_max_length(recipe.max_length, model.config, tokenizer)
    model.config.pad_token_id = tokenizer.pad_token_id  # decoders find a document's last token by it
    tables, truncations = _tables(splits, tokenizer, max_length, token_rules(model.config))
    adapted = attach(model, recipe.method)
    _say(recipe, adapted, labels)
    _set_precision(recipe, adapted)
    return Prepared(adapted, tokenizer, tables, truncations, labels, max_length, source)


def _check_activations(recipe: Recipe, model: PreTrainedModel) -> None:
    if recipe.training.gradient_checkpointing and not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"training.gradient_checkpointing: transformers has none for {model.config.model_type}; set it to false"
        )
    if recipe.training.activation_offload and not torch.cuda.is_available():
        log.info("training.activation_offload has no effect: there is no GPU, all activations are in CPU memory")


def _tables(
    splits: DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int, rules: TokenRules
) -> tuple[dict[str, Dataset], Mapping[str, Truncation]]:
    """Tokenise; what is only measured is sorted by length, so that its batches need little padding."""
    tables, truncations = tokenise(splits, tokenizer, max_length=max_length, rules=rules)
    for name in MEASURED:
        numbered = tables[name].add_column("position", list(range(len(tables[name]))))
        tables[name] = numbered.select(np.argsort(-np.asarray(numbered["length"]), kind="stable"))
    return tables, truncations


def _run(recipe: Recipe, prepared: Prepared, record: records.RunRecord, memory: PeakMemory) -> None:
    collator = PaddingCollator(prepared.tokenizer.pad_token_id)
    bar = Bar(recipe.training.metric)
    try:
        trainer = _fit(recipe, prepared, collator, [bar, records.Live(record, recipe.training.metric)])
        predictions = {name: predict_split(trainer, prepared.tables[name]) for name in MEASURED}
    finally:
        bar.close()
    if records.is_main_process():
        save_model(prepared, recipe)
        write_predictions(recipe.run_folder / "predictions.parquet", predictions, prepared.labels)
    record.update(**_outcome(recipe, trainer, predictions), memory=memory.measured())
    log.info("peak memory: %s", describe_memory(record.values["memory"]))


def _fit(
    recipe: Recipe, prepared: Prepared, collator: PaddingCollator, watchers: list[TrainerCallback]
) -> RecipeTrainer:
    """Train to the end and put the best weights into the model."""
    folder = _checkpoints(recipe)
    callbacks = [LogLast(), StepTimes(), *watchers]
    trainer = make_trainer(recipe, prepared.model, prepared.tables, collator, checkpoints=folder, callbacks=callbacks)
    checkpoint = last_complete(folder)
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
    trainer._load_best_model()


def _earlier(recipe: Recipe, *, restart: bool) -> dict[str, Any] | None:
    """Deal with what is in the run's folder; return the record of a finished run of this recipe."""
    folder, before = recipe.run_folder, records.read_record(recipe.run_folder)
    if before is None:
        _refuse_foreign(folder)
        return None
    if restart:
        if records.is_main_process():
            shutil.rmtree(folder)
        return None
    finished = before["status"] == records.FINISHED
    if not finished and last_complete(_checkpoints(recipe)) is None:
        return None
    _refuse_other_recipe(recipe, before)
    if not finished:
        return None
    log.info("%s is finished and is not repeated; --restart throws it away", folder)
    return before


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SaveError(f"{folder} exists and holds no run; choose another `name` or `output`")


def _refuse_other_recipe(recipe: Recipe, before: Mapping[str, Any]) -> None:
    differing = records.differing_keys(before["recipe"], records.plain(recipe))
    if differing:
        head = f"{recipe.run_folder} holds a run of another recipe; choose another `name`"
        raise RecipeError("\n  ".join([f"{head}, or --restart to throw it away", *differing]))


def _checkpoints(recipe: Recipe) -> Path:
    return recipe.run_folder / "checkpoints"


def _remove_checkpoints(recipe: Recipe) -> None:
    if records.is_main_process():
        shutil.rmtree(_checkpoints(recipe), ignore_errors=True)


def _say(recipe: Recipe, model: PreTrainedModel | PeftModel, labels: list[str]) -> None:
    count = count_parameters(model)
    log.info(
        "%d labels: %s; the head of the model is new and trained with the method",
        len(labels),
        ", ".join(labels),
    )
    log.info(
        "%s trains %s of %s parameters (%.3f %%): %s in the method, %s in the head",
        recipe.method["name"],
        *(f"{number:,}" for number in (count.trainable, count.total)),
        count.percent,
        *(f"{number:,}" for number in (count.adapter, count.head)),
    )
    dropout = recipe.training.attention_dropout
    if dropout != "model":
        log.info(
            "attention dropout is %g (hidden dropout as in the model); `attention_dropout: model` keeps it",
            dropout,
        )


def _set_precision(recipe: Recipe, model: PreTrainedModel | PeftModel) -> None:
    """Hold what is frozen in bfloat16 where the recipe asks for it; autocast is the Trainer's."""
    if recipe.training.precision == "bf16":
        held = hold_frozen(model)
        kept = f"{held:,} frozen parameters are held in it; " if held else ""
        log.info("computing in bfloat16; %swhat is trained stays float32", kept)


def _facts(prepared: Prepared) -> dict[str, Any]:
    count = count_parameters(prepared.model)
    return {
        "base_model": prepared.base_model,
        "labels": prepared.labels,
        "max_length": prepared.max_length,
        "documents": {name: asdict(counts) for name, counts in prepared.truncations.items()},
        "parameters": asdict(count) | {"trainable": count.trainable, "percent": count.percent},
    }


def _outcome(recipe: Recipe, trainer: RecipeTrainer, predictions: Mapping[str, Prediction]) -> dict[str, Any]:
    state = trainer.state
    return {
        "best": {
            "metric": recipe.training.metric,
            "value": state.best_metric,
            "step": state.best_global_step,
        },
        "steps": state.global_step,
        "epochs": records.history(state.log_history),
        **{name: prediction.metrics(recipe.ece_bins) for name, prediction in predictions.items()},
        "timings": timings(trainer, predictions),
    }
