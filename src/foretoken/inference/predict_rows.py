"""Predictions of a loaded model for rows of any problem, in batches of documents of like length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from foretoken.data.readers.rows import text_value
from foretoken.errors import AdapterError, DataError
from foretoken.inference.predictor import Predictor
from foretoken.training.tokens.batches import by_length, cut
from foretoken.training.tokens.encode import Truncation
from foretoken.training.trainer.progress import progress_bar


def refuse_unusable_texts(texts: Sequence[str]) -> None:
    """Raise a DataError for the first text without anything besides white space, or with bytes that are no UTF-8."""
    for number, text in enumerate(texts, 1):
        text_value(f"document {number} of {len(texts)}", text, "text")
        if not text.strip():
            raise DataError(f"document {number} of {len(texts)} is empty; expected some text")


def predict_rows(
    predictor: Predictor,
    table: Dataset,
    *,
    batch_size: int = 16,
    tokens_per_batch: int | None = None,
    scaled: bool = True,
) -> tuple[Any, Truncation, list[int]]:
    """Return what the problem predicts for every row of a table, in its order, what truncation cost, and the lengths.

    Args:
        predictor: what predicts.
        table: rows with the columns of the problem (see :func:`foretoken.data.schemas.table`); no labels are needed.
        batch_size: documents per forward pass.
        tokens_per_batch: tokens per forward pass, padding included, in place of ``batch_size``.
        scaled: apply the predictor's scaling, if it has one.
    """
    columns, truncation = predictor.problem.encode(table, predictor.settings)
    columns.pop("labels", None)
    lengths = columns["length"]
    found: list[Any] = [None] * len(lengths)
    with progress_bar("predicting") as bar:
        task = bar.add_task("", total=len(lengths), note="")
        for rows in _batches(lengths, batch_size, tokens_per_batch):
            batch = [{name: values[row] for name, values in columns.items()} for row in rows]
            for row, output in zip(rows, predict_batch(predictor, batch), strict=True):
                found[row] = output
            bar.advance(task, len(rows))
    outputs = np.stack(found) if predictor.problem.has_probabilities else found
    if scaled and predictor.scaling is not None:
        outputs = predictor.scaling.apply(outputs)
    return outputs, truncation, lengths


@torch.inference_mode()
def predict_batch(predictor: Predictor, rows: Sequence[dict[str, Any]]) -> Sequence[Any]:
    """Return the outputs for encoded rows that are run together.

    Raises:
        AdapterError: they are not finite: there is no prediction in them, whatever weight it was that is damaged.
    """
    batch = predictor.problem.collator(predictor.tokenizer, predictor.model)(rows)
    device = next(predictor.model.parameters()).device
    inputs = {name: value.to(device) for name, value in batch.items()}
    with torch.autocast(device.type, torch.bfloat16, enabled=predictor.precision == "bf16"):
        logits = predictor.problem.predict(predictor.model, inputs)
    if not logits.isfinite().all():
        raise AdapterError("the model's outputs are not finite numbers: its weights are damaged, train it again")
    return predictor.problem.decode(logits.float().cpu().numpy(), None)[0]


def _batches(lengths: Sequence[int], batch_size: int, tokens_per_batch: int | None) -> list[list[int]]:
    """Return the documents in batches, the longest ones first: a memory that is too small shows at once."""
    order = by_length(lengths)
    if tokens_per_batch is not None:
        return cut(order, lengths, tokens_per_batch)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
