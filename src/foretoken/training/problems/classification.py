"""One class per text, or per pair of texts; documents beyond the model's length truncated, or read in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from foretoken.data.plain_table import Table
from foretoken.data.problems import CLASSIFICATION
from foretoken.metrics import classification_metrics
from foretoken.training.problems.base import Collator, Inputs, Outputs, Problem, head_of
from foretoken.training.problems.metrics import probabilities_of
from foretoken.training.tokens.chunks import ChunkCollator, pooled
from foretoken.training.tokens.encode import EncodeSettings, PaddingCollator, TokenColumns, Truncation
from foretoken.training.tokens.texts import encode_texts


@dataclass(frozen=True)
class TextProblem(Problem):
    """What classification and regression share: a text or a pair of texts, and logits of the whole of it."""

    task_type: ClassVar[str] = "SEQ_CLS"
    pool: str | None = None  # of the chunks' logits; None: there are no chunks

    def check_texts(self) -> None:
        """Accept bare texts, where they are not trained on as pairs."""
        if self.pairs:
            super().check_texts()

    def encode(self, split: Table, settings: EncodeSettings) -> tuple[TokenColumns, Truncation]:
        """Return ``input_ids`` (and ``token_type_ids`` of pairs), or with chunks ``sequences``."""
        pairs = split["text_pair"] if "text_pair" in split.column_names else None
        return encode_texts(split["text"], pairs, settings)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> Collator:
        """Pad documents, or the chunks of all documents, to the longest one."""
        padding = PaddingCollator(int(tokenizer.pad_token_id))
        return padding if self.pool is None else ChunkCollator(padding)

    def forward(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
        """Let the model find loss and logits; of chunks, pool their logits first."""
        if "owner" not in inputs:
            return super().forward(model, inputs)
        given = dict(inputs)
        owner, labels = given.pop("owner"), given.pop("labels", None)
        logits = pooled(model(**given).logits, owner, str(self.pool))
        return None if labels is None else self.loss(logits, labels), logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of pooled logits (B, C)."""
        return nn.functional.cross_entropy(logits.float(), labels)


@dataclass(frozen=True)
class Classification(TextProblem):
    """One class per text."""

    name: ClassVar[str] = CLASSIFICATION

    @property
    def head_options(self) -> dict[str, object]:
        """One logit per label."""
        return head_of(self.labels)

    @property
    def more_metrics(self) -> tuple[str, ...]:
        """The mean of accuracy and F1 of two classes, and exact matches of groups."""
        return (*(["accuracy_f1"] if len(self.labels) == 2 else []), *(["exact_match"] if self.grouped else []))

    @property
    def has_probabilities(self) -> bool:
        """They are the outputs."""
        return True

    def decode(self, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Outputs, Outputs]:
        """Return probabilities [n, C] and class numbers [n]."""
        return probabilities_of(logits), [] if labels is None else labels

    def measure(self, outputs: Outputs, labels: Outputs, groups: Sequence[str] | None = None) -> dict[str, float]:
        """Return the metrics of classification; of grouped rows also how many groups are all right."""
        values = classification_metrics(outputs, labels, n_bins=self.n_bins)
        if len(self.labels) == 2:
            values["accuracy_f1"] = (values["accuracy"] + values["f1"]) / 2
        if self.grouped and groups is not None:
            from foretoken.metrics.choice import grouped_exact_match

            values["exact_match"] = grouped_exact_match(np.argmax(outputs, axis=1) == np.asarray(labels), groups)
        return values

    def columns(self, outputs: Outputs, labels: Outputs) -> dict[str, object]:
        """Return label, prediction and a probability per label."""
        outputs = np.asarray(outputs)
        return {
            "label": [self.labels[index] for index in labels],
            "prediction": [self.labels[index] for index in outputs.argmax(axis=1)],
        } | {f"prob_{name}": outputs[:, index] for index, name in enumerate(self.labels)}

    def from_columns(self, table: Mapping[str, Outputs]) -> tuple[Outputs, Outputs]:
        """Return probabilities [n, C] and class numbers [n]."""
        places = {name: index for index, name in enumerate(self.labels)}
        outputs = np.column_stack([np.asarray(table[f"prob_{name}"], dtype=np.float64) for name in self.labels])
        return outputs, np.array([places[str(label)] for label in table["label"]])

    def to_json(self, outputs: Outputs, rows: Table) -> list[dict[str, object]]:
        """Return label, its probability, and all probabilities."""
        return [self._answer(row) for row in np.asarray(outputs).tolist()]

    def _answer(self, row: list[float]) -> dict[str, object]:
        best = max(range(len(row)), key=row.__getitem__)
        return {
            "label": self.labels[best],
            "probability": round(row[best], 6),
            "probabilities": {label: round(value, 6) for label, value in zip(self.labels, row, strict=True)},
        }
