"""Rows of a table of tokens to a batch: padded to the longest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

TableRow: TypeAlias = Mapping[str, Any]  # of a table of tokens: what its problem has put there
OFFSET = "offset"  # of the logits of a document: the column of a table, and the input of a batch
PER_TOKEN = ("token_type_ids", "global_attention_mask")  # inputs of some models beside the ids


@dataclass(frozen=True)
class PaddingCollator:
    """Pad the documents of a batch to the longest one; what is no model input is left out.

    Always on the right. Tokenizers of decoders may pad on the left, which is for generation: families that count
    positions from the first column would give a document other positions in every batch.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[TableRow]) -> dict[str, torch.Tensor]:
        """Return input_ids, attention_mask and what else is one number per token [B, N], and labels [B] if any."""
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
    """Return the labels of rows, class numbers or floats, and the offsets of their logits, where they have any."""
    found = {name: torch.tensor([row[name] for row in rows]) for name in ("labels", OFFSET) if name in rows[0]}
    return {name: values.float() if values.is_floating_point() else values for name, values in found.items()}
