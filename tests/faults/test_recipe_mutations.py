"""Property: a recipe or sweep file that was made wrong runs, or is refused in a few short lines."""

import itertools
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.faults.forked import SCREENFUL, assert_done_or_refused
from support.faults.mutations import files, overrides

QUICK = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
METHODS = {
    "prefix-tuning": {"method": {"name": "prefix-tuning", "num_virtual_tokens": 2, "prefix_projection": False}},
    "stack": {"method": {"name": "stack", "configs": ["prefix-propagation", {"name": "lora", "r": 2}]}},
    "lora": {"method": {"name": "lora", "r": 2, "lora_dropout": 0.1}, "calibration": "temperature", "ece_bins": 5},
    "chunks": {"method": "bitfit", "max_length": 16, "chunks": {"pool": "max", "overlap": 4, "at_most": 3}},
    "lengthen": {"method": "prefix-propagation", "lengthen": {"max_length": 64, "attention_window": 8}},
}
TRAINING = {"epochs": 1, "batch_size": 4, "eval_every": 1, "lr_scheduler": "cosine", "attention_dropout": 0.1}
GENERATION = {"num_beams": 2, "max_new_tokens": 4, "length_penalty": 0.5, "markers": ["<s>"]}
SWEEP = {
    "compare": {"method": ["bitfit", {"name": "prefix-tuning", "num_virtual_tokens": 2}], "max_length": {"small": 8}},
    "search": {"strategy": "grid", "space": {"training.learning_rate": [0.1, 0.01]}, "seed": 1},
    "per": [
        {
            "when": {"method.name": "bitfit"},
            "set": {"training.epochs": 2},
            "space": {"training.batch_size": {"low": 2, "high": 8, "step": 2}},
        }
    ],
    "seeds": [0, 1],
    "seeds_for": "selected",
    "metric": "accuracy",
}
RANDOM = SWEEP | {"search": {"strategy": "random", "trials": 3, "space": {"training.seed": {"low": 1, "high": 9}}}}
counter = itertools.count()


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """Return a new folder at every call."""
    root = tmp_path_factory.mktemp("mutations")

    def make():
        folder = root / str(next(counter))
        folder.mkdir()
        return folder

    return make


def check_recipe(data, forked, tiny_files, fresh):
    values = tiny_files.values(training=TRAINING, **data.draw(st.sampled_from(list(METHODS.values()))))
    folder = fresh()
    (folder / "recipe.yaml").write_bytes(data.draw(files(values)))
    words = data.draw(overrides(values))
    fixed = ["--training.max_steps", "2", "--output", "runs", "--name", "run"]  # bounds the time, and where it writes
    ended = forked("train", "recipe.yaml", *words, *fixed, cwd=folder, seconds=60)
    if assert_done_or_refused(ended, lines=SCREENFUL):
        record = json.loads((folder / "runs" / "run" / "run.json").read_text())
        assert record["status"] == "finished"
        assert all(value is None or math.isfinite(value) for value in numbers(record["test"]))


def numbers(values):
    """Return every number of nested values, and None for each that there is none of."""
    if isinstance(values, dict | list):
        return [n for value in (values.values() if isinstance(values, dict) else values) for n in numbers(value)]
    return [values] if isinstance(values, int | float | None) else []


def check_sweep(data, forked, tiny_files, fresh):
    base = tiny_files.values(**data.draw(st.sampled_from([{}, {"generation": GENERATION}, METHODS["chunks"]])))
    values = {"recipe": base} | data.draw(st.sampled_from([SWEEP, RANDOM]))
    folder = fresh()
    (folder / "sweep.yaml").write_bytes(data.draw(files(values)))
    words = data.draw(overrides(base))
    ended = forked("sweep", "sweep.yaml", "--dry-run", *words, cwd=folder, seconds=60)
    if assert_done_or_refused(ended, lines=SCREENFUL):
        assert "nothing was run" in ended.out or "usage:" in ended.out
    assert [path.name for path in folder.iterdir()] == ["sweep.yaml"]


@settings(max_examples=6, **QUICK)
@given(data=st.data())
def test_a_recipe_made_wrong_runs_or_is_refused(data, forked, tiny_files, fresh):
    check_recipe(data, forked, tiny_files, fresh)


@settings(max_examples=5, **QUICK)
@given(data=st.data())
def test_a_sweep_file_made_wrong_is_planned_or_refused(data, forked, tiny_files, fresh):
    check_sweep(data, forked, tiny_files, fresh)


@pytest.mark.slow
@settings(max_examples=300, **QUICK)
@given(data=st.data())
def test_many_sweep_files_made_wrong_are_planned_or_refused(data, forked, tiny_files, fresh):
    check_sweep(data, forked, tiny_files, fresh)
