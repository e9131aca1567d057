"""Token classification, answered as the pipeline of transformers does."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TokenClassificationPipeline
from transformers.pipelines.token_classification import AggregationStrategy

from foretoken.data.problems import TOKEN_CLASSIFICATION
from foretoken.errors import DataError
from foretoken.serving.adapters import Adapter
from foretoken.serving.tasks import Document, Kind, Prepared, check_task
from foretoken.training.tokens.encode import refuse_without_embedding

Entities: TypeAlias = list[dict[str, object]]
Strategy: TypeAlias = Literal["none", "simple", "first", "average", "max"]
_SHARED = 4  # as in training: neighbouring windows share a quarter of their tokens


@dataclass(frozen=True)
class Tag:
    """The entities in a document; a long one is read in windows, and nothing is cut off.

    Attributes:
        aggregation_strategy: how tokens become entities, as in transformers' pipeline.
        stride: tokens that neighbouring windows share; None for a quarter of a window.
        ignore_labels: what is left out of the answer.
    """

    aggregation_strategy: Strategy = "simple"
    stride: int | None = None
    ignore_labels: tuple[str, ...] = ("O",)
    kind: Kind = "logits"

    def prepare(self, adapter: Adapter, document: Document) -> Prepared[Entities]:
        """Return the windows of a document."""
        check_task(adapter, TOKEN_CLASSIFICATION)
        if not isinstance(document.text, str) or not document.text.strip():
            raise DataError("the document is empty or no text; expected some text")
        windows = _windows(adapter, document.text, self.stride)
        rows = [{"input_ids": list(ids)} for ids in windows["input_ids"]]
        refuse_without_embedding([row["input_ids"] for row in rows], adapter.settings.rules)
        tokens = sum(len(row["input_ids"]) for row in rows)

        def finish(results: list[Tensor]) -> Entities:
            outputs = [
                {
                    "logits": logits[None],
                    "sentence": document.text,
                    "input_ids": [windows["input_ids"][number]],
                    "offset_mapping": [windows["offset_mapping"][number]],
                    "special_tokens_mask": torch.tensor([windows["special_tokens_mask"][number]]),
                }
                for number, logits in enumerate(results)
            ]
            answer = _Answers(adapter.settings.tokenizer, adapter.labels)
            strategy = AggregationStrategy(self.aggregation_strategy)
            found = answer.postprocess(outputs, strategy, list(self.ignore_labels))
            return [_plain(entity) for entity in found]

        return Prepared(rows, tokens, finish)


class _Answers(TokenClassificationPipeline):
    """The second half of the pipeline: from logits to entities. The model has run already."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...]) -> None:
        self.tokenizer: Any = tokenizer
        self.model: Any = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(labels))))


def _windows(adapter: Adapter, text: str, stride: int | None) -> dict[str, list[list[int]]]:
    settings = adapter.settings
    room = settings.max_length - settings.tokenizer.num_special_tokens_to_add()
    shared = room // _SHARED if stride is None else stride
    if not 0 <= shared < room:
        raise DataError(f"stride: got {shared}, expected a whole number from 0 to {room - 1}")
    return dict(
        settings.tokenizer(
            text,
            truncation=True,
            max_length=settings.max_length,
            stride=shared,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,
        )
    )


def _plain(entity: dict[str, object]) -> dict[str, object]:
    """Return an entity with Python's own numbers."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in entity.items()}
