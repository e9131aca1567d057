"""Documents to token ids: truncated to a length, counted, and padded per batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset, DatasetDict
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from foretoken.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)
_NO_LIMIT = 10**9  # tokenizers that know no maximum report a huge number


@dataclass(frozen=True)
class Truncation:
    """How many documents lost their end, and how long the longest was."""

    documents: int
    truncated: int
    longest: int


def model_max_length(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the most tokens a document may have in this model."""
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    offset = _position_offset(config)
    if limits[0]:
        limits[0] -= offset
    known = [limit for limit in limits if limit and limit < _NO_LIMIT]
    return min(known) if known else 512


def chosen_max_length(wanted: int | None, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the recipe's max_length, or the model's; more than the model reads is a ConfigError."""
    limit = model_max_length(config, tokenizer)
    if wanted is not None and wanted > limit:
        raise ConfigError(
            f"max_length: got {wanted}, but the model reads at most {limit} tokens; "
            "lower it, or lengthen the model (`lengthen:` in the recipe)"
        )
    return wanted or limit


def tokenise(
    splits: DatasetDict, tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> tuple[dict[str, Dataset], dict[str, Truncation]]:
    """Return per split a table of input_ids, labels, length and id, and what truncation cost."""
    tables, counts = {}, {}
    for name, split in splits.items():
        encoded = encode(split["text"], tokenizer, max_length=max_length)
        counts[name] = encoded.truncation
        tables[name] = Dataset.from_dict(
            {
                "input_ids": encoded.input_ids,
                "labels": split["label"],
                "length": [len(ids) for ids in encoded.input_ids],
                "id": [str(name) for name in split["id"]],
            }
        )
        log.info("%s: %s", name, describe(encoded.truncation, max_length))
    return tables, counts


@dataclass(frozen=True)
class Encoded:
    """Token ids of some documents, and what truncation cost."""

    input_ids: list[list[int]]
    truncation: Truncation


def encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> Encoded:
    """Tokenise documents of any length; what is beyond `max_length` is cut off and counted."""
    whole, cut = [], []
    for start in range(0, len(texts), 1000):
        batch = list(texts[start : start + 1000])
        kept = tokenizer(batch, truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
        cut.extend(kept)
        whole.extend(_full_lengths(batch, kept, tokenizer, max_length))
    truncated = sum(length > max_length for length in whole)
    return Encoded(cut, Truncation(len(cut), truncated, max(whole, default=0)))


def describe(counts: Truncation, max_length: int) -> str:
    """Say in words how many documents were truncated."""
    noun = "document" if counts.documents == 1 else "documents"
    text = f"{counts.documents} {noun}, longest {counts.longest} tokens"
    if not counts.truncated:
        return f"{text}, none truncated"
    return f"{text}, {counts.truncated} of {counts.documents} truncated to {max_length} tokens"


@dataclass(frozen=True)
class PaddingCollator:
    """Pad the documents of a batch to the longest one; what is no model input is left out."""

    pad_token_id: int
    padding_side: str = "right"

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return input_ids and attention_mask [B, N], and labels [B] where there are any."""
        tensors = self._pad([row["input_ids"] for row in rows])
        if "labels" in rows[0]:
            tensors["labels"] = torch.tensor([row["labels"] for row in rows])
        return tensors

    def _pad(self, documents: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        longest = max(len(ids) for ids in documents)
        input_ids = torch.full((len(documents), longest), self.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        for row, ids in enumerate(documents):
            place = slice(0, len(ids)) if self.padding_side == "right" else slice(longest - len(ids), longest)
            input_ids[row, place] = torch.tensor(ids, dtype=torch.long)
            attention_mask[row, place] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}


def _full_lengths(
    texts: Sequence[str], kept: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[int]:
    """Return every document's length before truncation; only those that were cut are tokenised again."""
    lengths = [len(ids) for ids in kept]
    cut = [index for index, length in enumerate(lengths) if length >= max_length]
    if cut:
        again = tokenizer([texts[index] for index in cut], return_attention_mask=False, verbose=False)["input_ids"]
        for index, ids in zip(cut, again, strict=True):
            lengths[index] = len(ids)
    return lengths


def _position_offset(config: PretrainedConfig) -> int:
    """Positions that RoBERTa's family keeps for padding: they start at pad_token_id + 1."""
    shifted = (
        "roberta",
        "longformer",
        "camembert",
        "xlm-roberta",
        "xlm-roberta-xl",
        "led",
        "mpnet",
        "data2vec-text",
    )
    return (config.pad_token_id or 0) + 1 if config.model_type in shifted else 0
