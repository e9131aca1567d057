"""Data files of every format, changed in any way: learned from and predicted row by row, or refused in one line."""

import json
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.faults.forked import assert_done_or_refused
from support.faults.mutated import PROBLEMS, changes, count_rows, write
from support.tiny_generation import save_model

COMMON = ("a.csv", "a.parquet", "words.conll")
QUICK = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def recipe_for(tiny_files, tmp_path_factory):
    """Write the recipe of one step on a file of this name."""
    decoder = save_model(tmp_path_factory.mktemp("decoder"), "gpt2")

    def make(folder, name, path):
        problem = PROBLEMS[name]
        changes = {"data": {"path": str(path), "problem": problem}, "training": {"max_steps": 1}}
        if problem == "generation":
            changes |= {"model": str(decoder), "generation": {"max_new_tokens": 2, "num_beams": 1}}
            changes["training"] |= {"metric": "loss"}
        return tiny_files.recipe(folder, **changes)

    return make


@pytest.fixture(scope="module")
def run_for(forked, recipe_for, tmp_path_factory):
    """Return a run on a file that is as it should be, one for each problem."""

    @cache
    def run(problem):
        folder = tmp_path_factory.mktemp("valid")
        name = next(name for name, posed in PROBLEMS.items() if posed == problem)
        recipe_for(folder, name, write(folder, name, [], []))
        assert assert_done_or_refused(forked("train", "recipe.yaml", cwd=folder)), name
        return folder / "runs" / "run"

    return run


def input_of(name, path):
    """Return what of a file or folder `predict` reads."""
    return {"splits": path / "train.csv", "saved": None}.get(name, path)


@pytest.fixture
def check(forked, recipe_for, run_for, tmp_path_factory):
    """Train and predict on a changed file."""

    def run(name, changed):
        folder = tmp_path_factory.mktemp("changed")
        path = write(folder, name, *changed)
        recipe_for(folder, name, path)
        trained = forked("train", "recipe.yaml", cwd=folder)
        learned = assert_done_or_refused(trained)
        is_found = "text is read from column" in trained.err  # which the run that predicts does not know
        if learned and PROBLEMS[name] != "generation":  # which is trained on a row per target
            record = json.loads((folder / "runs" / "run" / "run.json").read_text())
            assert sum(split["documents"] for split in record["documents"].values()) == count_rows(path)
        given = input_of(name, path)
        if given is None:
            return
        predicted = forked("predict", run_for(PROBLEMS[name]), "--input", given)
        if predicted.code == 1:
            assert not learned or is_found, predicted.err
            assert '"error": ' in predicted.out
        elif assert_done_or_refused(predicted):
            assert predicted.out.count("\n") == count_rows(given)
        elif learned and name != "splits" and not is_found:
            raise AssertionError(f"trained on what cannot be predicted: {predicted.err}")

    return run


@pytest.mark.parametrize(
    "name", [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in PROBLEMS]
)
def test_valid_files_are_predicted_row_by_row(check, name):
    check(name, ([], []))


@settings(max_examples=5, **QUICK)
@given(name=st.sampled_from(list(PROBLEMS)), changed=changes())
def test_changed_files_are_done_or_refused(check, name, changed):
    check(name, changed)


@pytest.mark.slow
@settings(max_examples=600, **QUICK)
@given(name=st.sampled_from(list(PROBLEMS)), changed=changes())
def test_changed_files_are_done_or_refused_many(check, name, changed):
    check(name, changed)
