"""Candidates of grid, random and tpe."""

import dataclasses
from types import SimpleNamespace

import pytest

from foretoken.sweeps.candidates import planned, propose
from foretoken.sweeps.plan import load_plan

SPACE = {
    "training.learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "training.batch_size": [4, 8],
    "method.name": ["lora", "bitfit"],
    "max_length": {"low": 8, "high": 64, "step": 8},
}


def outcome(params, score=None, is_lost=False):
    return SimpleNamespace(params=params, score=score, is_lost=is_lost)


@pytest.fixture
def searched(write):
    def make(**search):
        plan = load_plan(write(compare=None, search=search))
        return plan.variants[0], plan.config.search

    return make


def test_a_grid_is_the_product_in_the_order_of_the_file(searched):
    space = {"training.batch_size": [8, 4], "max_length": {"low": 8, "high": 24, "step": 8}}
    found = planned(*searched(space=space)).candidates
    assert [tuple(params.values()) for params in found] == [(8, 8), (8, 16), (8, 24), (4, 8), (4, 16), (4, 24)]


def test_no_space_is_one_candidate(searched):
    assert planned(*searched(strategy="tpe", trials=3)).candidates == [{}]


def test_random_draws_the_same_distinct_values_everywhere_and_others_by_another_seed(searched):
    variant, search = searched(strategy="random", trials=20, space=SPACE)
    found = planned(variant, search).candidates
    assert found == planned(variant, search).candidates
    assert len({str(params) for params in found}) == 20
    for params in found:
        assert 1e-5 <= params["training.learning_rate"] <= 1e-1
        assert params["training.batch_size"] in (4, 8)
        assert params["max_length"] % 8 == 0
        assert isinstance(params["max_length"], int)
    assert found != planned(variant, dataclasses.replace(search, seed=1)).candidates


def test_random_in_a_small_space_ends_with_all_of_it(searched):
    found = planned(*searched(strategy="random", trials=10, space={"training.batch_size": [4, 8, 16]})).candidates
    assert sorted(params["training.batch_size"] for params in found) == [4, 8, 16]


def test_tpe_goes_where_the_scores_are_good(searched):
    variant, search = searched(
        strategy="tpe", trials=50, space={"training.learning_rate": SPACE["training.learning_rate"]}
    )

    def run(maximise):
        known = []
        for _ in range(30):
            params = propose(variant, search, known, maximise=maximise)
            score = abs(params["training.learning_rate"] - 0.03)
            known.append(outcome(params, -score if maximise else score))
        return [item.params["training.learning_rate"] for item in known[15:]]

    for maximise in (True, False):
        late = run(maximise)
        assert sum(0.01 < rate < 0.1 for rate in late) >= 8  # one quarter of the range: 4 by chance


def test_tpe_takes_what_runs_and_what_failed(searched):
    variant, search = searched(strategy="tpe", trials=50, space=SPACE)
    params = propose(variant, search, [], maximise=True)
    known = [
        outcome(params, 0.5),
        outcome(params),
        outcome(params, is_lost=True),
        outcome({"training.batch_size": 4}, 0.1),  # of an earlier version of the file, with another space
        outcome(params | {"training.batch_size": 64}, 0.1),
    ]
    again = propose(variant, search, known, maximise=True)
    assert list(again) == list(SPACE)
    assert again == propose(variant, search, known, maximise=True)
