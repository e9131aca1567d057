"""Vectors of passages by the pretrained model: computed once per run, not once per epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from torch import nn
from transformers import PreTrainedTokenizerBase

from foretoken.training.problems.retrieval import Retrieval, Vectors
from foretoken.training.tokens.batches import by_length

log = logging.getLogger(__name__)
Tokens = tuple[int, ...]


def with_passage_vectors(
    problem: Retrieval,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    tables: Mapping[str, Dataset],
    *,
    batch_size: int,
    precision: str,
) -> dict[str, Dataset]:
    """Return the tables with ``documents``, the vectors of passages and negatives, in the place of their tokens.

    Args:
        problem: in which the adapter is for queries alone.
        model: the pretrained model with the adapter, which rests here.
        tokenizer: its tokenizer.
        tables: the tokens of every split.
        batch_size: passages that are run together.
        precision: ``fp32``, or ``bf16`` for autocast.
    """
    texts = list({tuple(ids) for table in tables.values() for row in table["sequences"] for ids in row[1:]})
    vectors = _vectors(problem, model, tokenizer, texts, batch_size, precision)
    log.info("the pretrained model has read %d passages, once for all epochs", len(texts))
    places = {text: place for place, text in enumerate(texts)}
    return {split: _replaced(table, vectors, places) for split, table in tables.items()}


@torch.inference_mode()
def _vectors(
    problem: Retrieval,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Tokens],
    batch_size: int,
    precision: str,
) -> Vectors:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    collator, was_training = problem.collator(tokenizer, model), model.training
    model.to(device).eval()
    order = by_length([len(text) for text in texts])
    rows: list[Any] = [None] * len(texts)
    with problem.reading_passages(model), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            batch = collator([{"sequences": [texts[place]]} for place in places])
            _, found = problem.forward(model, {key: value.to(device) for key, value in batch.items()})
            for place, vector in zip(places, found[:, 0].cpu().numpy(), strict=True):
                rows[place] = vector
    model.train(was_training)
    return np.stack(rows)


def _replaced(table: Dataset, vectors: Vectors, places: Mapping[Tokens, int]) -> Dataset:
    rows = list(table["sequences"])
    columns = {name: list(table[name]) for name in table.column_names}
    columns["sequences"] = [row[:1] for row in rows]
    columns["documents"] = [vectors[[places[tuple(ids)] for ids in row[1:]]] for row in rows]
    features = Features({**table.features, "documents": List(List(Value("float32")))})
    return Dataset.from_dict(columns, features=features)
