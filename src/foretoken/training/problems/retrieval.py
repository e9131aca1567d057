"""Queries and the passages that answer them: texts become vectors, and a query finds what is near to it.

Trained as in Henderson et al. (2017), section 4.4, which sentence-transformers calls MultipleNegativesRankingLoss.

Shapes: B batch, S sequences, K texts of a row (a query, its passages, its negatives), D width of a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from peft import PeftModel
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from foretoken.backbones.pooling import sentence_vectors
from foretoken.data.plain_table import Table
from foretoken.data.problems import RETRIEVAL
from foretoken.errors import BackboneError
from foretoken.metrics.retrieval import DEPTH, retrieval_metrics
from foretoken.sentence_encoders import SentenceEncoder
from foretoken.training.problems.base import FILL, Collator, Inputs, Outputs, Problem
from foretoken.training.recipe.recipe import RetrievalOptions
from foretoken.training.tokens.encode import (
    EncodeSettings,
    PaddingCollator,
    TableRow,
    TokenColumns,
    Truncation,
    chosen_max_length,
    count_lengths,
    encode,
    model_max_length,
    padded,
)

if TYPE_CHECKING:
    from datasets import Dataset

Vectors = NDArray[np.float32]
_AT_ONCE = 2**24  # similarities in memory


@dataclass(frozen=True)
class Ranking:
    """The passages that were found for a query, the nearest first: their numbers, and their cosine similarities."""

    numbers: list[int]
    scores: list[float]


@dataclass(frozen=True)
class Retrieval(Problem):
    """Vectors of queries and passages. In training a query is to be nearer to its passage than to the batch's others.

    A passage that answers the query too, because its text is the same or because the data say so, is none of the
    others. What is measured is the search in the passages of the split; see :mod:`foretoken.inference.retrieval` for
    larger corpora.

    Attributes:
        options: of the recipe.
        encoder: how vectors are made, as the folder of the pretrained model says.
    """

    name: ClassVar[str] = RETRIEVAL
    task_type: ClassVar[str] = "FEATURE_EXTRACTION"
    options: RetrievalOptions = field(default_factory=RetrievalOptions)
    encoder: SentenceEncoder = field(default_factory=SentenceEncoder)

    def for_model(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Retrieval:
        """Return the problem with the pooling of this model.

        Raises:
            BackboneError: it is an encoder-decoder, or its vectors are made in a way that is not known here.
        """
        if config.is_encoder_decoder:
            raise BackboneError(
                f"texts are embedded by the last states of one stack, and {config.model_type} has an encoder and a "
                "decoder; take an encoder, e.g. bert or mpnet"
            )
        return replace(self, encoder=SentenceEncoder.of(config.name_or_path))

    def max_length(self, wanted: int | None, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
        """Return the recipe's number, or that of the sentence encoder's folder, or the model's."""
        own = SentenceEncoder.of(config.name_or_path).max_length
        if wanted is None and own is not None:
            return min(own, model_max_length(config, tokenizer))
        return chosen_max_length(wanted, config, tokenizer)

    def check_texts(self) -> None:
        """Accept bare texts: they are queries."""

    def training_rows(self, split: Dataset) -> Dataset:
        """Return one row per passage that answers a query; ``others`` are the texts of the query's further ones."""
        from datasets import Dataset, Features

        places = [(row, place) for row, texts in enumerate(split["passages"]) for place in range(len(texts))]
        rows = split.select([row for row, _ in places])
        whole = [list(texts) for texts in rows["passages"]]
        columns = {name: list(rows[name]) for name in split.column_names} | {
            "id": [f"{name}/{place}" for name, (_, place) in zip(rows["id"], places, strict=True)],
            "passages": [[texts[place]] for texts, (_, place) in zip(whole, places, strict=True)],
            "others": [texts[:place] + texts[place + 1 :] for texts, (_, place) in zip(whole, places, strict=True)],
        }
        features = Features({**split.features, "others": split.features["passages"]})
        return Dataset.from_dict(columns, features=features)

    def encode(self, split: Table, settings: EncodeSettings) -> tuple[TokenColumns, Truncation]:
        """Return ``sequences`` of a query, its passages and its negatives, and ``length``, the tokens of all of them.

        ``labels`` are how many passages answer the query, and the number of each sequence after the query's; ``others``
        are the numbers of passages that answer it too. Bare texts have neither.
        """
        names = split.column_names
        rows = [[text] for text in split["query" if "query" in names else "text"]]
        is_labelled = "passages" in names
        if is_labelled:
            passages, negatives = list(split["passages"]), list(split["negatives"])
            rows = [[*row, *one, *other] for row, one, other in zip(rows, passages, negatives, strict=True)]
        texts = list(dict.fromkeys(text for row in rows for text in row))
        found = encode(texts, settings.tokenizer, max_length=settings.max_length, rules=settings.rules)
        places = {text: place for place, text in enumerate(texts)}
        columns: TokenColumns = {"sequences": [[found.input_ids[places[text]] for text in row] for row in rows]}
        columns["length"] = [sum(map(len, row)) for row in columns["sequences"]]
        if is_labelled:
            others = list(split["others"]) if "others" in names else [[] for _ in rows]
            numbers = passage_numbers([*passages, *others], negatives)
            right = [len(one) for one in passages]
            columns["labels"] = [
                [count, *(numbers[text] for text in row[1:])] for count, row in zip(right, rows, strict=True)
            ]
            columns["others"] = [[numbers[text] for text in row] for row in others]
        longest = [max(found.lengths[places[text]] for text in row) for row in rows]
        partly = sum(any(places[text] in found.partly for text in row) for row in rows)
        return columns, count_lengths(longest, settings.max_length, partly)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> Collator:
        """Pad the texts of all rows to the longest one."""
        return RetrievalCollator(PaddingCollator(int(tokenizer.pad_token_id)))

    def forward(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
        """Return the mean loss over the queries, and the vectors (B, K, D) of every row's texts."""
        given = dict(inputs)
        labels, others, documents = (given.pop(name, None) for name in ("labels", "others", "documents"))
        slots = given.pop("slots")
        rows = self.vectors(model, given)[slots.clamp(min=0)]
        if documents is not None:
            rows = torch.cat([rows, documents.to(rows)], dim=1)
        if labels is None:
            return None, rows
        loss = ranking_loss(rows, labels, others, scale=self.options.scale)
        return loss, rows.masked_fill((labels == FILL)[..., None], FILL)

    def vectors(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Return the vectors (S, D) of sequences, of which ``inputs`` are what the model reads."""
        states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"] != 0
        return sentence_vectors(states, mask, pool=self.encoder.pool, normalise=self.encoder.normalise).float()

    @property
    def sentence_encoder(self) -> SentenceEncoder:
        """The pooling of the model."""
        return self.encoder

    def reading_passages(self, model: nn.Module) -> AbstractContextManager[object]:
        """Return a context in which the model reads passages: without its adapter where that is for queries alone."""
        rests = self.options.adapt == "queries" and isinstance(model, PeftModel)
        return model.disable_adapter() if rests else nullcontext()  # type: ignore[operator]

    def decode(self, logits: np.ndarray, labels: np.ndarray | None) -> tuple[Outputs, Outputs]:
        """Return a ranking of the passages of all rows for each query, and the numbers of the right ones.

        Without labels there is nothing to rank: the first vector of each row is returned.
        """
        if labels is None:
            return [row[0] for row in logits], []
        there = labels[:, 1:] != FILL
        numbers, first = np.unique(labels[:, 1:][there], return_index=True)
        rankings = ranked(logits[:, 0], logits[:, 1:][there][first], numbers)
        return rankings, [row[1 : 1 + row[0]].tolist() for row in labels]

    def labels_of(self, split: Dataset) -> list[list[int]]:
        """Return the numbers of the passages that answer each query."""
        numbers = passage_numbers(split["passages"], split["negatives"])
        return [[numbers[text] for text in texts] for texts in split["passages"]]

    def measure(self, outputs: Outputs, labels: Outputs, groups: Sequence[str] | None = None) -> dict[str, float]:
        """Return the metrics of search."""
        return retrieval_metrics([ranking.numbers for ranking in outputs], labels)

    def columns(self, outputs: Outputs, labels: Outputs) -> dict[str, object]:
        """Return the numbers of the right passages, of those that were found, and the similarities of these."""
        return {
            "label": [list(numbers) for numbers in labels],
            "prediction": [ranking.numbers for ranking in outputs],
            "scores": [ranking.scores for ranking in outputs],
        }

    def from_columns(self, table: Mapping[str, Outputs]) -> tuple[Outputs, Outputs]:
        """Return the rankings, and the numbers of the right passages."""
        return list(map(Ranking, table["prediction"], table["scores"])), table["label"]

    def to_json(self, outputs: Outputs, rows: Table) -> list[dict[str, object]]:
        """Return the numbers and similarities of the passages that were found."""
        return [
            {
                "passages": [
                    {"number": number, "score": round(score, 6)}
                    for number, score in zip(ranking.numbers, ranking.scores, strict=True)
                ]
            }
            for ranking in outputs
        ]


@dataclass(frozen=True)
class RetrievalCollator:
    """Make one batch of the texts of several rows; ``slots`` says which sequence is which text of which row."""

    padding: PaddingCollator

    def __call__(self, rows: Sequence[TableRow]) -> dict[str, Tensor]:
        """Return what the model reads, [S, N], ``slots`` [B, K], and what rows have of labels, others and documents."""
        counts = [len(row["sequences"]) for row in rows]
        starts = np.cumsum([0, *counts[:-1]]).tolist()
        numbers = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
        batch = self.padding([{"input_ids": ids} for row in rows for ids in row["sequences"]])
        batch |= {"slots": padded(numbers, FILL)}
        batch |= {name: padded([row[name] for row in rows], FILL) for name in ("labels", "others") if name in rows[0]}
        if "documents" in rows[0]:
            vectors = [torch.tensor(row["documents"], dtype=torch.float32) for row in rows]
            batch["documents"] = nn.utils.rnn.pad_sequence(vectors, batch_first=True)
        return batch


def ranking_loss(rows: Tensor, labels: Tensor, others: Tensor, *, scale: float) -> Tensor:
    """Return the mean cross-entropy of the queries' similarities to their passages, among all passages of the batch.

    With cosine similarities s and the passage p of query q: ``-log(exp(scale s(q, p)) / sum over c of exp(scale
    s(q, c)))``, where c goes over p and all passages and negatives of the batch that do not answer q too.

    Args:
        rows: vectors (B, K, D): query, passages that answer it (the first is p), negatives.
        labels: how many of them answer the query, and their numbers (B, K), as :meth:`Retrieval.encode` returns them.
        others: numbers of passages that answer the query too (B, R).
        scale: of the similarities.
    """
    vectors, numbers = nn.functional.normalize(rows.float(), dim=-1), labels[:, 1:]
    count, size = numbers.shape
    scores = scale * vectors[:, 0] @ vectors[:, 1:].flatten(0, 1).T  # (B, B (K - 1))
    answers = torch.arange(size, device=labels.device) < labels[:, :1]
    right = torch.cat([numbers.masked_fill(~answers, FILL), others], dim=1)
    candidates = numbers.flatten()
    left_out = (candidates[None, :, None] == right[:, None]).any(dim=-1) | (candidates == FILL)
    own = size * torch.arange(count, device=labels.device)
    left_out[torch.arange(count, device=labels.device), own] = False
    return nn.functional.cross_entropy(scores.masked_fill(left_out, -torch.inf), own)


def passage_numbers(passages: Iterable[Sequence[str]], negatives: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return a number for every passage text: first those that answer a query, in order, then the others.

    >>> passage_numbers([["a"], ["b", "a"]], [["c"], ["a"]])
    {'a': 0, 'b': 1, 'c': 2}
    """
    texts = dict.fromkeys(text for rows in (passages, negatives) for row in rows for text in row)
    return {text: number for number, text in enumerate(texts)}


def ranked(queries: Any, passages: Any, numbers: ArrayLike | None = None, *, top: int = DEPTH) -> list[Ranking]:
    """Return the passages nearest to each query by cosine similarity, found by looking at all of them.

    Args:
        queries: vectors (n, D).
        passages: vectors (m, D).
        numbers: of the passages, default 0 to m - 1; of equally near ones the earlier comes first.
        top: how many are returned, if there are so many.
    """
    names = np.arange(len(passages)) if numbers is None else np.asarray(numbers)
    one, other = unit(queries), unit(passages)
    step, kept = max(1, _AT_ONCE // max(1, len(other))), min(top, len(other))
    found = []
    for start in range(0, len(one), step):
        scores = one[start : start + step] @ other.T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :kept]
        found += [Ranking(names[row].tolist(), line[row].tolist()) for row, line in zip(order, scores, strict=True)]
    return found


def unit(vectors: Any) -> Vectors:
    """Return vectors (n, D) of length 1; one of zeros stays as it is."""
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, np.where(lengths == 0, 1, lengths), dtype=np.float32)
