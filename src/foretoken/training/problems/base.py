"""What training and inference ask of a problem: its model, its tokens, its loss, its predictions and their metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from foretoken.data.plain_table import Table
from foretoken.data.problems import PROBLEMS, ProblemData
from foretoken.errors import ConfigError
from foretoken.metrics.decision import Decision
from foretoken.metrics.regression import TargetScale
from foretoken.metrics.scaling import Kind, Scaling
from foretoken.metrics.table import further_metrics
from foretoken.training.tokens.encode import EncodeSettings, TokenColumns, Truncation, chosen_max_length
from foretoken.training.tokens.padding import TableRow

if TYPE_CHECKING:
    from datasets import Dataset

FILL = -100  # where rows have unequal numbers of labels or logits; the Trainer fills with it between batches, too
Inputs: TypeAlias = dict[str, Any]
Outputs: TypeAlias = Any  # what is predicted, or right, one per row: an array or a list, as the problem has it
Collator: TypeAlias = Callable[[Sequence[TableRow]], Inputs]


@dataclass(frozen=True)
class Problem(ABC):
    """One kind of problem on the data of one run.

    Attributes:
        labels: the classes or tags, in order; none for other problems.
        grouped: whether the rows of one group are also scored together.
        n_bins: bins of the calibration errors.
        pairs: whether every text comes with a second one.
        task_type: peft's name of the problem.
    """

    labels: tuple[str, ...] = ()
    grouped: bool = False
    n_bins: int = 15
    pairs: bool = False
    name: ClassVar[str]
    task_type: ClassVar[str]
    generates: ClassVar[bool] = False  # what is predicted comes from `predict`, and not with the loss
    reads_chunks: ClassVar[bool] = False  # documents beyond the model's length are read in chunks
    smooths_labels: ClassVar[bool] = False  # the loss is over a fixed set, and may be smoothed

    @property
    def facts(self) -> ProblemData:
        """What is known of it before its data are read."""
        return PROBLEMS[self.name]

    @staticmethod
    def class_rows(table: Dataset) -> list[list[int]]:
        """Return the numbers of the classes of every row; none where texts have no classes."""
        return []

    def of_training(self, split: Dataset) -> Problem:
        """Return the problem with what it takes from the training split."""
        return self

    def task_type_of(self, config: PretrainedConfig) -> str:
        """Return what peft calls the problem on a model with this config."""
        return self.task_type

    def for_model(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Problem:
        """Return the problem as it is posed to a model; the tokenizer may yet have to learn the new tokens."""
        return self

    @property
    def head_options(self) -> dict[str, object]:
        """What the model's config must say for its head to fit."""
        return {}

    @property
    def more_metrics(self) -> tuple[str, ...]:
        """Names of the metrics that these data have beside those of every such problem."""
        return ()

    @property
    def has_probabilities(self) -> bool:
        """Whether the outputs are probabilities [n, C] of the labels, which can be calibrated."""
        return False

    @property
    def calibrations(self) -> tuple[str, ...]:
        """The kinds of calibration that fit it."""
        return ("temperature", "vector") if self.has_probabilities else ()

    def fit_scaling(self, kind: Kind, outputs: Outputs, labels: Outputs) -> Scaling:
        """Return the scaling of probabilities that fits validation best."""
        raise ConfigError(f"calibration: {self.name} has no probabilities to scale; leave it out")

    def fitted_targets(self, kind: str | None, outputs: Outputs, labels: Outputs) -> TargetScale | None:
        """Return the scale of numbers, with their error on validation where a calibration is asked for."""
        return None

    @property
    def decision(self) -> Decision | None:
        """What was fitted to answer for probabilities; None: the likeliest class, labels of 0.5, or no such answers."""
        return None

    def answering(self, decision: Decision | None, targets: TargetScale | None) -> Problem:
        """Return the problem whose answers are decided, or scaled, as was fitted on validation."""
        return self

    @property
    def of_card(self) -> dict[str, object]:
        """What a card says of it beside its labels."""
        return {}

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """Tokens that the problem adds to the vocabulary, and whose embeddings are trained."""
        return ()

    def max_length(self, wanted: int | None, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
        """Return the tokens that a document may have, given the recipe's number."""
        return chosen_max_length(wanted, config, tokenizer)

    def training_rows(self, split: Dataset) -> Dataset:
        """Return the rows of a split as they are trained on."""
        return split

    @abstractmethod
    def encode(self, split: Table, settings: EncodeSettings) -> tuple[TokenColumns, Truncation]:
        """Return the columns of a split that its batches are made of, among them ``length``, and what was cut."""

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> Collator:
        """Return what makes a batch of rows: inputs of :meth:`forward`, and ``labels`` where the rows have any."""

    def forward(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
        """Return the mean loss over the batch's items (None without labels), and what is predicted from."""
        outputs = model(**inputs)
        return outputs.loss if "labels" in inputs else None, outputs.logits

    def predict(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Return what is predicted from, for a batch that may have labels."""
        return self.forward(model, inputs)[1]

    def items(self, inputs: Inputs) -> int:
        """Return how many items the loss of a batch is a mean over."""
        return len(inputs["labels"])

    @abstractmethod
    def decode(self, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Outputs, Outputs]:
        """Return the outputs and the labels, one of each per row; -100 fills what rows of other batches lack.

        The labels may be None: :meth:`labels_of` returns them then, from the table.
        """

    def check_texts(self) -> None:
        """Raise a ConfigError where bare texts, without anything beside them, cannot be predicted."""
        raise ConfigError(f"{self.name} needs more than a text: name a file with --input")

    def labels_of(self, split: Dataset) -> Outputs:
        """Return the labels of a split as :meth:`decode` returns them."""
        return np.asarray(split["label"])

    def decided(self, outputs: Outputs) -> Outputs:
        """Return what is answered for outputs: class numbers, 0 and 1 of labels, or the outputs themselves."""
        return outputs

    def answered(self, outputs: Outputs) -> list[list[int]]:
        """Return the numbers of the labels that are answered for each row, the likeliest first; none without labels."""
        return [[] for _ in outputs]

    def decided_on(self, outputs: Outputs, labels: Outputs) -> Problem:
        """Return the problem with what its answers are chosen by, fitted on validation; as it is where nothing is."""
        return self

    @abstractmethod
    def scores_of(self, outputs: Outputs, labels: Outputs, groups: Sequence[str] | None = None) -> dict[str, float]:
        """Return the metrics of some rows that its family computes."""

    def measure(self, outputs: Outputs, labels: Outputs, groups: Sequence[str] | None = None) -> dict[str, float]:
        """Return the metrics of some rows."""
        return self.scores_of(outputs, labels, groups) | further_metrics(self.name, outputs, labels)

    @abstractmethod
    def columns(self, outputs: Outputs, labels: Outputs) -> dict[str, object]:
        """Return what a file of predictions says of the rows, besides their ids."""

    def measure_columns(self, table: Mapping[str, Outputs]) -> dict[str, float]:
        """Return the metrics of rows that :meth:`columns` wrote."""
        return self.measure(*self.from_columns(table))

    def from_columns(self, table: Mapping[str, Outputs]) -> tuple[Outputs, Outputs]:
        """Return the outputs and the labels that :meth:`columns` was given, to be measured."""
        return table["prediction"], table["label"]

    @abstractmethod
    def to_json(self, outputs: Outputs, rows: Table) -> list[dict[str, object]]:
        """Return what `foretoken predict` says of each row, beside its id."""


def head_of(labels: Sequence[str]) -> dict[str, object]:
    """Return what a model's config says of a head with one logit per label.

    >>> head_of(["no", "yes"])
    {'num_labels': 2, 'id2label': {0: 'no', 1: 'yes'}, 'label2id': {'no': 0, 'yes': 1}}
    """
    names = dict(enumerate(labels))
    return {"num_labels": len(labels), "id2label": names, "label2id": {name: index for index, name in names.items()}}
