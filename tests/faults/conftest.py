"""Commands that run in processes of their own, and a tiny model with documents for them."""

import shutil
from types import SimpleNamespace

import pytest
import yaml

from support.faults.crashes import Crashes, compiled
from support.faults.finished import train_all
from support.faults.forked import Forked
from support.tiny_run import documents, save_tiny_model, write_csv


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """Run `foretoken` in a process of its own: `forked("train", "recipe.yaml", cwd=folder)`."""
    made = Forked(tmp_path_factory.mktemp("forked"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def crashes(tmp_path_factory):
    """Run `foretoken` with a fault at one of the calls that change a file."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("crashes")
    made = Forked(folder, preload=compiled(folder))
    yield Crashes(made, folder)
    made.close()


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory):
    """A tiny model and a csv of 40 documents; `recipe(folder, ...)` writes a recipe of three steps of training."""
    root = tmp_path_factory.mktemp("tiny-files")
    model = save_tiny_model(root / "model")
    data = write_csv(root / "mail.csv", documents(40))

    def values(**changes):
        training = {"num_threads": 1, "max_steps": 3, "learning_rate": 0.03} | changes.pop("training", {})
        return {
            "model": str(model),
            "data": {"path": str(data)},
            "method": {"name": "prefix-tuning", "num_virtual_tokens": 2},
            "training": training,
            "output": "runs",
            "name": "run",
        } | changes

    def recipe(folder, name="recipe.yaml", **changes):
        (folder / name).write_text(yaml.safe_dump(values(**changes)))
        return folder / name

    return SimpleNamespace(root=root, model=model, data=data, values=values, recipe=recipe)


@pytest.fixture(scope="session")
def runs(tmp_path_factory, forked, tiny_files):
    """The folders of finished runs, one per kind of method; tests damage copies of them."""
    return train_all(tmp_path_factory.mktemp("finished"), forked, tiny_files)
