"""Searches in stages: one group of fields after the other, from the best so far; killed and failed in between."""

import pytest

from foretoken.errors import DataError, RecipeError
from foretoken.sweeps.candidates import planned
from foretoken.sweeps.plan import load_plan
from foretoken.sweeps.status import is_over

SPACE = {"training.learning_rate": [0.1, 0.01, 0.001], "training.batch_size": [4, 8], "max_length": [16, 32]}
STAGES = [["training.learning_rate"], ["training.batch_size", "max_length"]]
SEARCH = {"space": SPACE, "stages": STAGES}


def score(recipe):
    """Best at a rate of 0.01 with the first values of the others; at 0.1 alone, a batch of 8 would be better still."""
    rate, training = recipe.training.learning_rate, recipe.training
    score = {0.1: 0.3, 0.01: 0.6, 0.001: 0.1}[rate] - 0.05 * (recipe.max_length == 16)
    return score + (0.5 if rate == 0.1 else 0.1) * (training.batch_size == 8)


def values(candidates):
    return [tuple(item.params.values()) for item in candidates]


def test_the_second_stage_starts_from_the_best_of_the_first(sweep, runs, work):
    runs.score = score
    one = sweep(compare=None, search=SEARCH)
    assert values(one.look()[0].candidates) == [(0.1, 4, 16), (0.01, 4, 16), (0.001, 4, 16)]
    assert one.look()[0].total == 2 * 6
    assert not one.propose()
    found = work(one)["bitfit"]
    assert values(found.candidates[3:]) == [(0.01, 4, 32), (0.01, 8, 16), (0.01, 8, 32)]
    assert list(found.selected.params) == list(SPACE)
    assert tuple(found.selected.params.values()) == (0.01, 8, 32)
    assert len(runs.trained) == len(set(runs.trained)) == 2 * 6
    assert sorted(runs.measured) == [f"bitfit/{name}" for name in runs_of(found.selected)]
    (variant,) = one.plan.variants
    assert planned(variant, one.plan.config.search).size == found.expected == 6


def runs_of(candidate):
    return sorted(row.run.partition("/")[2] for row in candidate.rows.values())


def test_a_killed_search_goes_on_in_the_stage_where_it_was(sweep, runs, work):
    def killed(recipe):
        if len(runs.trained) == 8:
            raise KeyboardInterrupt
        return score(recipe)

    runs.score = killed
    with pytest.raises(KeyboardInterrupt):
        work(sweep(compare=None, search=SEARCH))
    runs.score, before = score, list(runs.trained)
    found = work(sweep(compare=None, search=SEARCH))["bitfit"]
    assert is_over([found])
    assert runs.trained[:8] == before
    assert runs.trained[8] == before[7]
    assert len(set(runs.trained)) == 12


def test_the_best_seed_mean_of_a_loss_starts_the_next_stage(sweep, runs, work):
    runs.score, one = score, sweep(compare=None, search=SEARCH)
    one.maximise = dict.fromkeys(one.maximise, False)
    assert {rate for rate, *_ in values(work(one)["bitfit"].candidates[3:])} == {0.001}


def test_a_stage_without_any_result_ends_the_search(sweep, runs, work):
    def fails(recipe):
        raise DataError("no such column")

    runs.score, one = fails, sweep(compare=None, search=SEARCH, seeds=[0])
    found = work(one)["bitfit"]
    assert (found.selected, len(found.candidates), found.search_is_over) == (None, 3, True)
    runs.score, again = score, sweep(compare=None, search=SEARCH, seeds=[0])
    again.retry_broken()
    assert tuple(work(again)["bitfit"].selected.params.values()) == (0.01, 8, 32)


def test_a_variant_without_the_fields_of_a_stage_skips_it(sweep, runs, work):
    per = [{"when": {"method.name": "lora"}, "space": {"method.r": [2, 4]}}]
    search = {"space": {"training.learning_rate": [0.1, 0.01]}, "stages": [["training.learning_rate"], ["method.r"]]}
    found = work(sweep(search=search, per=per))
    assert [len(found[name].candidates) for name in ("lora", "prefix-tuning")] == [3, 2]
    assert found["lora"].selected.params == {"training.learning_rate": 0.1, "method.r": 2}


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"stages": [["training.learning_rate"]]}, "search.stages: no stage has training.batch_size"),
        ({"stages": [*STAGES, ["max_length"]]}, "search.stages: max_length is named twice"),
        ({"stages": [*STAGES, ["method.r"]]}, "search.stages: method.r is searched by no variant; give its values"),
        ({"stages": ["training.learning_rate"]}, "search.stages"),
        ({"strategy": "tpe", "trials": 3}, "search: stages are searched as grids; leave out stages, or strategy: tpe"),
    ],
)
def test_stages_that_cannot_be_are_said_in_one_line(write, search, message):
    with pytest.raises(RecipeError) as error:
        load_plan(write(compare=None, search=SEARCH | search))
    assert message in str(error.value)
