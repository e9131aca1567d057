"""Rows of a table of tokens to a batch: padded to the longest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

TableRow: TypeAlias = Mapping[str, Any]  # a row of the token columns of a problem
OFFSET = "offset"  # the column, and input of a batch, with what is added to the logits of a document
PER_TOKEN = ("token_type_ids", "global_attention_mask")  # inputs of some models beside the ids


@dataclass(frozen=True)
class PaddingCollator:
    """Pad the documents of a batch to the longest one, without columns that are no inputs.

    Padding is always on the right: on the left, models that count positions from the first column would give a
    document other positions in every batch.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[TableRow]) -> dict[str, torch.Tensor]:
        """Return input_ids, attention_mask and other columns with a number per token [B, N], and labels [B] if any."""
        documents = [row["input_ids"] for row in rows]
        attention_mask = padded([[1] * len(ids) for ids in documents], 0)
        tensors = {"input_ids": padded(documents, self.pad_token_id), "attention_mask": attention_mask}
        for name in PER_TOKEN:
            if name in rows[0]:
                tensors[name] = padded([row[name] for row in rows], 0)
        return tensors | of_documents(rows)


def padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Return rows of whole numbers as one tensor, filled on the right.

    >>> padded([[1, 2], [3]], 0).tolist()
    [[1, 2], [3, 0]]
    """
    filled = torch.full((len(rows), max(len(row) for row in rows)), fill)
    for index, row in enumerate(rows):
        filled[index, : len(row)] = torch.tensor(row, dtype=torch.long)
    return filled


def of_documents(rows: Sequence[TableRow]) -> dict[str, torch.Tensor]:
    """Return the labels of rows, class numbers or floats, and the offsets of their logits, if they have any."""
    columns = {name: torch.tensor([row[name] for row in rows]) for name in ("labels", OFFSET) if name in rows[0]}
    return {name: values.float() if values.is_floating_point() else values for name, values in columns.items()}
