"""Folds beside seeds: every candidate runs every fold, and its score is the mean over all of them."""

import json

import pytest

from foretoken.sweeps.plan import load_plan
from foretoken.sweeps.record import sweep_record
from foretoken.sweeps.status import is_over
from foretoken.sweeps.tables import planned_rows, result_rows

FOLDS = {"path": "mail.csv", "folds": 3}


def test_a_recipe_of_folds_has_a_run_for_each_seed_and_fold(write):
    plan = load_plan(write(recipe__data=FOLDS))
    variant = plan.variants[0]
    assert variant.repeats == [(seed, fold) for seed in (0, 1) for fold in (0, 1, 2)]
    recipe = plan.recipe(variant, {"training.learning_rate": 0.1}, *variant.repeats[4])
    assert (recipe.training.seed, recipe.data.folds, recipe.data.fold) == (1, 3, 1)
    assert recipe.run_folder.as_posix() == "sweeps/sweep/lora/learning_rate=0.1-seed1-fold1"
    assert planned_rows(plan, {"lora": 3, "prefix-tuning": 3})[0] == ["lora", "3", "2 x 3 folds", "18", "0"]


def test_a_single_fold_and_none_are_no_axis(write):
    for data in ({"path": "mail.csv"}, FOLDS | {"fold": 2}):
        (variant, _) = load_plan(write(recipe__data=data)).variants
        assert variant.repeats == [(0, None), (1, None)]
    assert load_plan(write(recipe__data=FOLDS | {"fold": 2})).recipe(variant, {}, 0).data.fold == 2


def test_the_mean_over_folds_and_seeds_selects_and_all_of_it_is_tested(sweep, runs, work):
    scores = {(0.1, 0): 0.9, (0.1, 1): 0.1, (0.1, 2): 0.2, (0.01, 0): 0.5, (0.01, 1): 0.6, (0.01, 2): 0.4}
    runs.score = lambda recipe: scores.get((recipe.training.learning_rate, recipe.data.fold), 0.0)
    one = sweep(recipe__data=FOLDS)
    found = work(one)
    assert (len(runs.trained), len(runs.measured)) == (2 * 3 * 2 * 3, 2 * 2 * 3)
    lora = found["lora"]
    assert lora.selected.params == {"training.learning_rate": 0.01}
    assert lora.selected.score == pytest.approx(0.5)
    assert result_rows([lora])[0][3:6] == ["0.5000 ± 0.0000", "0.2500 ± 0.0000", "2"]
    record = json.loads(json.dumps(sweep_record(one.plan, list(found.values()))))["contestants"][0]
    assert (record["seeds"], record["folds"]) == ([0, 1], 3)
    assert record["test"]["f1_macro"]["seeds"] == {"0": pytest.approx(0.25), "1": pytest.approx(0.25)}
    run = record["candidates"][1]["runs"]["lora/learning_rate=0.01-seed1-fold2"]
    assert (run["seed"], run["fold"], run["validation"]["f1_macro"]) == (1, 2, 0.4)
    assert is_over(work(sweep(recipe__data=FOLDS)).values())
    assert len(runs.trained) == 36


def test_the_search_may_have_the_first_fold_and_seed_alone(sweep, runs, work):
    found = work(sweep(recipe__data=FOLDS, folds_for="selected", seeds_for="selected"))
    assert sorted(runs.trained[:6]) == sorted(
        f"{name}/learning_rate={rate}-seed0-fold0" for name in found for rate in ("0.1", "0.01", "0.001")
    )
    assert (len(runs.trained), len(runs.measured)) == (6 + 2 * 5, 2 * 6)
    assert {item.total for item in found.values()} == {8}


def test_a_seed_without_all_its_folds_has_no_score_in_the_table(sweep, runs, work):
    one = sweep(recipe__data=FOLDS, search__space=None)
    found = work(one)["lora"]
    row = next(row for repeat, row in found.selected.rows.items() if repeat == (1, 2))
    file = one.folder / row.run / "run.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "test"}))
    again = next(item for item in one.look() if item.variant.name == "lora")
    assert result_rows([again])[0][5] == "1"
