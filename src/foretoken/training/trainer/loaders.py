"""The Trainer's batches by a budget of tokens."""

from __future__ import annotations

import logging
from typing import Any

from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer

from foretoken.errors import ConfigError
from foretoken.training.recipe.recipe import TrainingOptions
from foretoken.training.tokens.batches import FixedBatches, TokenBatches, by_length, cut

log = logging.getLogger(__name__)


def check_processes(options: TrainingOptions, *, processes: int, gpus: int) -> None:
    """Refuse a budget of tokens where batches are divided by documents.

    Raises:
        ConfigError: one process with several GPUs, or an evaluation by tokens in several processes.
    """
    if options.tokens_per_batch is not None and processes == 1 and gpus > 1:
        raise ConfigError(
            f"training.tokens_per_batch: one process with {gpus} GPUs divides its batches by documents; "
            "start one process per GPU with `accelerate launch -m foretoken train ...`"
        )
    if options.eval_tokens_per_batch is not None and processes > 1:
        raise ConfigError(
            f"training.eval_tokens_per_batch: {processes} processes share out what is measured by documents; "
            "leave it out (training.eval_batch_size holds)"
        )


def training_batches(trainer: Trainer, budget: int, seed: int) -> DataLoader:
    """Return this process's share of the training documents' batches, and say how many there are."""
    table: Any = trainer.train_dataset
    args = trainer.args
    batches = TokenBatches(
        table["length"], budget=budget, seed=seed, processes=args.world_size, rank=args.process_index
    )
    log.info("%d documents in %d batches of at most %d tokens", len(table), batches.total, budget)
    if batches.alone:
        log.info("%d of %d documents have more than %d tokens and go alone", len(batches.alone), len(table), budget)
    return _loader(trainer, table, batches)


def measured_batches(trainer: Trainer, table: Any, budget: int | None) -> DataLoader | None:
    """Return batches of what is only measured, longest documents first; None without a budget."""
    if budget is None:
        return None
    lengths = table["length"]
    order = by_length(lengths)
    if order != sorted(order):
        raise ValueError("a table that is measured is expected to be sorted by length, longest first")
    return _loader(trainer, table, FixedBatches(cut(order, lengths, budget)))


def _loader(trainer: Trainer, table: Any, batches: Sampler[list[int]]) -> DataLoader:
    """Let accelerate move the batches to the device; they are shared out already."""
    loader: DataLoader = DataLoader(
        table,
        batch_sampler=batches,
        collate_fn=trainer.data_collator,
        pin_memory=trainer.args.dataloader_pin_memory,
    )
    return prepare_data_loader(loader, trainer.args.device, num_processes=1, process_index=0, put_on_device=True)
