"""A sweep file, and runs that take no time: their score is a function of the recipe."""

import copy
from types import SimpleNamespace

import pytest
import yaml

from foretoken.files import write_json
from foretoken.sweeps.dispatcher import Dispatcher
from foretoken.sweeps.plan import load_plan
from foretoken.sweeps.sweep import Sweep
from foretoken.sweeps.workers import InThisProcess
from foretoken.training.run.record import read_record, recipe_to_json

FILE = {
    "recipe": {"model": "tiny", "data": {"path": "mail.csv"}, "method": "bitfit"},
    "compare": {"method": ["lora", {"name": "prefix-tuning", "num_virtual_tokens": 4}]},
    "search": {"space": {"training.learning_rate": [0.1, 0.01, 0.001]}},
    "seeds": [0, 1],
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a sweep file, changed by dotted keys; None takes a key out."""
    monkeypatch.chdir(tmp_path)

    def make(**changes):
        values = copy.deepcopy(FILE)
        for key, value in changes.items():
            group, *path = values, *key.split("__")
            for part in path[:-1]:
                group = group.setdefault(part, {})
            group.pop(path[-1], None)
            if value is not None:
                group[path[-1]] = value
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        return path

    return make


@pytest.fixture
def sweep(write):
    """Open a sweep."""
    return lambda overrides=(), **changes: Sweep(load_plan(write(**changes), overrides))


@pytest.fixture
def work(runs):
    """Do all runs of a sweep; return the statuses by variant."""

    def do(sweep, workers=None, **options):
        Dispatcher(sweep, workers or InThisProcess(), lambda _: None, **options).work()
        return {item.variant.name: item for item in sweep.look()}

    return do


def in_sweep(recipe):
    """Return the name that a run has in its sweep."""
    return "/".join(recipe.run_folder.parts[-2:])


@pytest.fixture
def runs(monkeypatch):
    """Replace training and measuring; `trained` and `measured` list what was done, `score` says how well."""
    done = SimpleNamespace(trained=[], measured=[], score=lambda recipe: recipe.training.learning_rate)

    def train(recipe, *, accept_changed=False, callbacks=(), measure_test=True):
        assert not measure_test
        before = read_record(recipe.run_folder)
        if before is not None and before["status"] == "finished":
            return before
        done.trained.append(in_sweep(recipe))
        record = {
            "status": "finished",
            "recipe": recipe_to_json(recipe),
            "problem": "classification",
            "parameters": {"percent": 1.0},
            "timings": {"step_seconds_median": None},
            "validation": {"f1_macro": done.score(recipe), "loss": 1.0},
        }
        write_json(recipe.run_folder / "run.json", record)
        return record

    def measure_test(recipe, *, accept_changed=False):
        done.measured.append(in_sweep(recipe))
        record = read_record(recipe.run_folder) | {"test": {"f1_macro": done.score(recipe) / 2}}
        write_json(recipe.run_folder / "run.json", record)
        return record

    monkeypatch.setattr("foretoken.training.run.train.train", train)
    monkeypatch.setattr("foretoken.inference.evaluate.measure_test", measure_test)
    monkeypatch.setattr("foretoken.sweeps.dispatcher.PAUSE", 0.01)
    return done
