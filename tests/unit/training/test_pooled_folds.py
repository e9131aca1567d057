"""What predictions say when they are read back: the metrics that they had when they were written."""

import numpy as np
import pyarrow as pa
import pytest

from foretoken.data.problems import PROBLEMS
from foretoken.training.problems import make_problem
from foretoken.training.problems.question_answering import SpanAnswer, Truth
from foretoken.training.run.folds import only_test, over_folds, pooled_scores

CHANCE = np.random.default_rng(0)
TAGS = ["O", "B-PER", "I-PER"]


def shares(count):
    return CHANCE.dirichlet(np.ones(count))


PREDICTED = {  # outputs and labels of twelve rows
    "classification": (np.array([shares(3) for _ in range(12)]), np.arange(12) % 3),
    "multi-label-classification": (CHANCE.random((12, 3)), CHANCE.integers(0, 2, (12, 3))),
    "regression": (CHANCE.normal(size=12), CHANCE.normal(size=12)),
    "multiple-choice": ([shares(2 + row % 3) for row in range(12)], np.arange(12) % 2),
    "candidates": ([shares(4) for _ in range(12)], np.arange(12) % 4),
    "token-classification": ([TAGS[:2]] * 12, [TAGS[:2], TAGS[1:]] * 6),
    "generation": (["a plane lands", "it rains"] * 6, [["a plane has landed", "a plane lands"], ["it snows"]] * 6),
    "question-answering": (
        [SpanAnswer(0, 7, 1.5, 0.25), SpanAnswer(8, 13, 0.5, 0.25)] * 6,
        [Truth("a plane lands", ["a plane"]), Truth("a plane lands", ["plane"])] * 6,
    ),
}
LABELS = {
    "classification": ["no", "yes", "maybe"],
    "multi-label-classification": ["no", "yes", "maybe"],
    "token-classification": TAGS,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_file_of_predictions_measures_as_they_did(name):
    problem = make_problem(name, LABELS.get(name, []), n_bins=7)
    outputs, labels = PREDICTED[name]
    rows = pa.table({"split": ["test"] * 12, **problem.columns(outputs, labels)})
    other = pa.table({"split": ["validation"] * 12, **problem.columns(outputs[::-1], labels)})
    expected = problem.measure(outputs, labels)
    assert expected
    assert pooled_scores(problem, only_test(pa.concat_tables([rows, other]))) == pytest.approx(expected)


def test_means_are_over_the_folds_that_all_have_the_metric():
    found = over_folds([{"f1": 0.5, "loss": 1.0}, {"f1": 0.7, "loss": None}])
    assert found == {"f1": {"mean": pytest.approx(0.6), "std": pytest.approx(np.std([0.5, 0.7], ddof=1))}}
