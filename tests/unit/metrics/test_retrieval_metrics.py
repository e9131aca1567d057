"""Metrics of search beside scikit-learn's nDCG and plain loops, on random rankings."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from foretoken.errors import DataError
from foretoken.metrics.retrieval import per_query, retrieval_metrics

CHANCE = np.random.default_rng(0)
RANKINGS = [CHANCE.permutation(150).tolist() for _ in range(40)]
RELEVANT = [CHANCE.choice(150, size=CHANCE.integers(1, 15), replace=False).tolist() for _ in range(40)]


def test_ndcg_is_scikit_learns():
    for ranking, right, found in zip(RANKINGS, RELEVANT, per_query(RANKINGS, RELEVANT)["ndcg_at_10"], strict=True):
        truth = np.isin(np.arange(150), right)[None].astype(float)
        scores = -np.argsort(ranking)[None].astype(float)
        assert found == pytest.approx(ndcg_score(truth, scores, k=10))


def test_reciprocal_ranks_and_recalls_are_those_of_plain_loops():
    found = per_query(RANKINGS, RELEVANT)
    for row, (ranking, right) in enumerate(zip(RANKINGS, RELEVANT, strict=True)):
        first = next((1 / (place + 1) for place in range(10) if ranking[place] in right), 0.0)
        assert found["mrr_at_10"][row] == first
        for k in (1, 10, 100):
            assert found[f"recall_at_{k}"][row] == len(set(ranking[:k]) & set(right)) / len(right)
    assert retrieval_metrics(RANKINGS, RELEVANT) == {name: values.mean() for name, values in found.items()}


def test_a_short_ranking_that_lacks_the_passage_scores_nothing():
    assert set(retrieval_metrics([[1, 2]], [[7]]).values()) == {0.0}
    assert set(retrieval_metrics([[7]], [[7]]).values()) == {1.0}


@pytest.mark.parametrize(
    ("rankings", "relevant", "said"),
    [
        ([], [], "got 0 rankings for 0 queries"),
        ([[1]], [[1], [2]], "got 1 rankings for 2 queries"),
        ([[1]], [[]], "query 0 has no relevant passage"),
        ([[1, 1]], [[1]], "the ranking of query 0 has a passage twice"),
    ],
)
def test_unusable_rankings_are_refused(rankings, relevant, said):
    with pytest.raises(DataError, match=said):
        retrieval_metrics(rankings, relevant)
