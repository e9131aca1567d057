"""Search: vectors of texts by a model and its adapter, the passages nearest to a query, and how good they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from foretoken.data.plain_table import PlainTable
from foretoken.data.problems import RETRIEVAL
from foretoken.data.readers.retrieval import Passages
from foretoken.errors import ConfigError
from foretoken.inference.any_predictor import AnyPredictor, Predictor
from foretoken.inference.predictor import predict_rows
from foretoken.metrics.retrieval import DEPTH
from foretoken.training.problems.retrieval import Ranking, Retrieval, Vectors, passage_numbers, ranked, unit
from foretoken.training.run.results import Prediction, prediction_of
from foretoken.training.tokens.encode import Truncation

if TYPE_CHECKING:
    from datasets import Dataset

Side: TypeAlias = Literal["query", "passage"]
Search: TypeAlias = Literal["exact", "usearch"]


@dataclass(frozen=True)
class Embedded:
    """Vectors (n, D) of texts, what truncation cost, and how many tokens of each text were read."""

    vectors: Vectors
    truncation: Truncation
    lengths: list[int]


def embed(
    predictor: AnyPredictor,
    texts: Sequence[str],
    side: Side = "query",
    *,
    batch_size: int = 16,
    tokens_per_batch: int | None = None,
) -> Embedded:
    """Return the vectors of texts, as sentence-transformers' ``encode`` returns them.

    Args:
        predictor: a sentence encoder, with an adapter or without, as :func:`load_for_inference` returns it.
        texts: queries or passages.
        side: which of the two; with an adapter for queries alone, passages are read by the pretrained model.
        batch_size: texts per forward pass.
        tokens_per_batch: tokens per forward pass, padding included, in place of ``batch_size``.

    Raises:
        ConfigError: the predictor does something else.
    """
    if not isinstance(predictor, Predictor) or not isinstance(predictor.problem, Retrieval):
        raise ConfigError(
            f"the folder predicts {predictor.problem.name}; texts are embedded by sentence encoders, and by runs of "
            f"{RETRIEVAL}"
        )
    problem = predictor.problem
    table = PlainTable({"text": texts})
    with problem.reading_passages(predictor.model) if side == "passage" else nullcontext():
        rows, truncation, lengths = predict_rows(
            predictor, table, batch_size=batch_size, tokens_per_batch=tokens_per_batch
        )
    return Embedded(np.stack(rows), truncation, lengths)


def search(queries: Vectors, passages: Vectors, how: Search = "exact", *, top: int = DEPTH) -> list[Ranking]:
    """Return the passages nearest to each query by cosine similarity.

    Args:
        queries: vectors (n, D).
        passages: vectors (m, D).
        how: ``exact``: all passages are looked at; ``usearch``: a graph of neighbours (HNSW) is made and searched,
            which is faster from some hundred thousand passages on, and may miss some.
        top: how many are returned, if there are so many.
    """
    if how == "exact":
        return ranked(queries, passages, top=top)
    from usearch.index import Index, Matches

    index = Index(ndim=passages.shape[1], metric="cos", dtype="f32", expansion_search=2 * top)
    index.add(np.arange(len(passages)), unit(passages))
    found = index.search(unit(queries), min(top, len(passages)))
    rows = [found] if isinstance(found, Matches) else [found[row] for row in range(len(queries))]
    return [_nearest(row.keys, 1 - row.distances) for row in rows]


def retrieved(
    predictor: AnyPredictor,
    documents: Dataset,
    corpus: Passages | None = None,
    how: Search = "exact",
    *,
    batch_size: int = 16,
    tokens_per_batch: int | None = None,
) -> tuple[Prediction, Truncation]:
    """Return the rankings for labelled queries, and what truncation cost.

    Args:
        predictor: a sentence encoder, with an adapter or without.
        documents: the queries; their passages and negatives are searched, each text once.
        corpus: further passages, which are numbered after those of the queries.
        how: see :func:`search`.
        batch_size: texts per forward pass.
        tokens_per_batch: tokens per forward pass, padding included, in place of ``batch_size``.
    """
    began = time.perf_counter()
    numbers = passage_numbers(documents["passages"], [*documents["negatives"], corpus.texts if corpus else []])
    read = partial(embed, predictor, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
    passages, queries = read(list(numbers), "passage"), read(list(documents["query"]), "query")
    rankings = search(queries.vectors, passages.vectors, how)
    labels = [[numbers[text] for text in texts] for texts in documents["passages"]]
    table = documents.add_column("length", queries.lengths).add_column("position", list(range(len(documents))))
    seconds = time.perf_counter() - began
    return prediction_of(predictor.problem, table, rankings, labels, seconds), passages.truncation


def answers(rankings: Sequence[Ranking], passages: Passages) -> list[dict[str, object]]:
    """Return what `foretoken predict` says of each query, beside its id."""
    return [
        {
            "passages": [
                {"id": passages.ids[number], "score": round(score, 6), "passage": passages.texts[number]}
                for number, score in zip(ranking.numbers, ranking.scores, strict=True)
            ]
        }
        for ranking in rankings
    ]


def _nearest(numbers: np.ndarray, scores: np.ndarray) -> Ranking:
    order = np.lexsort((numbers, -scores))
    return Ranking([int(number) for number in numbers[order]], [float(score) for score in scores[order]])
