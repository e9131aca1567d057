"""Metrics of search: how early, and how completely, the passages that answer a query stand among those found."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from foretoken.errors import DataError

DEPTH = 100  # passages of a ranking
_RECALLS = (1, 10, 100)


def retrieval_metrics(rankings: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]) -> dict[str, float]:
    """Return the means of :func:`per_query` over the queries.

    Args:
        rankings: for each query, the numbers of the passages that were found, the best first; up to 100 count.
        relevant: for each query, the numbers of the passages that answer it, at least one.

    Raises:
        DataError: no queries, unequal lengths, a query without a relevant passage, or a ranking with one twice.

    >>> scores = retrieval_metrics([[7, 3, 5], [2, 4, 6]], [{3}, {2, 9}])
    >>> scores["mrr_at_10"], scores["recall_at_1"], scores["recall_at_10"]
    (0.75, 0.25, 0.75)
    """
    return {name: float(values.mean()) for name, values in per_query(rankings, relevant).items()}


def per_query(rankings: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]) -> dict[str, NDArray[np.float64]]:
    """Return every metric of every query (n,).

    With r the relevant passages and rank i from 1: ``mrr_at_10`` is 1 / i of the first of r in the first 10, or 0;
    ``ndcg_at_10`` is the sum over those of r in the first 10 of 1 / log2(i + 1), divided by the same sum for a ranking
    that begins with them (Järvelin and Kekäläinen 2002, gains of 0 and 1); ``recall_at_k`` is the share of r in the
    first k.

    Raises:
        DataError: as :func:`retrieval_metrics`.
    """
    _check(rankings, relevant)
    rows = [_of_one(list(ranking), set(right)) for ranking, right in zip(rankings, relevant, strict=True)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _of_one(ranking: list[int], right: set[int]) -> dict[str, float]:
    hits = [place for place, number in enumerate(ranking[:DEPTH], 1) if number in right]
    first = [place for place in hits if place <= 10]
    gain = sum(1 / np.log2(place + 1) for place in first)
    best = sum(1 / np.log2(place + 1) for place in range(1, min(len(right), 10) + 1))
    recalls = {f"recall_at_{k}": sum(place <= k for place in hits) / len(right) for k in _RECALLS}
    return {"ndcg_at_10": float(gain / best), "mrr_at_10": 1 / first[0] if first else 0.0, **recalls}


def _check(rankings: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]) -> None:
    if not len(rankings) or len(rankings) != len(relevant):
        raise DataError(
            f"got {len(rankings)} rankings for {len(relevant)} queries; expected one for each, at least one"
        )
    for row, (ranking, right) in enumerate(zip(rankings, relevant, strict=True)):
        if not len(right):
            raise DataError(f"query {row} has no relevant passage; expected at least one")
        if len(set(ranking)) < len(ranking):
            raise DataError(f"the ranking of query {row} has a passage twice; expected each once")
