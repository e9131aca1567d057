"""Option values are checked once, together, and importing them is cheap."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import foretoken.errors
from foretoken.data.load import load_data
from foretoken.data.options import DataOptions
from foretoken.data.tasks.table import task_errors
from foretoken.errors import ConfigError, RecipeError
from foretoken.training.recipe.recipe import build_recipe


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, "no data named"),
        ({"task": "pydocs", "text_column": "body"}, "text_column is for your own data"),
        ({"path": "a.csv", "train": "b.csv"}, "both path and train"),
        ({"test": "b.csv"}, "test is set without train"),
        ({"path": ""}, "path is an empty string"),
        ({"path": "a", "problem": "regresion"}, "no problem 'regresion' (did you mean 'regression'?)"),
        ({"task": "rte", "problem": "regression"}, "problem is for your own data, and has no use with task 'rte'"),
        (
            {"path": "a", "problem": "multiple-choice", "text_pair_column": "b"},
            "text_pair_column is for classification",
        ),
        (
            {"path": "a", "problem": "multiple-choice", "label_column": "choices"},
            "the choices and label_column are both",
        ),
        (
            {"path": "a", "problem": "candidates", "text_column": "b"},
            "text_column has no use with problem 'candidates'",
        ),
        ({"path": "a", "problem": "regression", "labels": ["x", "y"]}, "labels is for classification"),
        ({"task": "20newsgroups", "remove": ["header"]}, "'header' is not known (did you mean 'headers'?)"),
        ({"task": "20newsgroups", "remove": "headers"}, "remove: got 'headers' (a text), expected a list"),
        ({"path": "a", "test_fraction": 0.5, "validation_fraction": 0.5}, "must be below 1, got 1"),
        ({"path": "a", "max_test": 0}, "max_test: got 0, expected at least 1"),
        ({"path": "a", "labels": ["x"]}, "labels must name at least two"),
        ({"path": "a", "text_column": "label"}, "they must differ"),
    ],
)
def test_a_bad_value_is_named(values, part):
    with pytest.raises(ConfigError) as caught:
        DataOptions(**values)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"task": "pydoc"}, "no task 'pydoc' (did you mean 'pydocs'?)"),
        ({"task": "pydocs", "path": "x"}, "path has no use with task 'pydocs'"),
        ({"path": "a", "split": "longformer"}, "exists only for task 'hyperpartisan'"),
        ({"task": "rte", "split": "longformer"}, "exists only for task 'hyperpartisan', got task 'rte'"),
        ({"task": "hyperpartisan", "split": "official"}, "split='official' exists only for tasks "),
        ({"task": "rte", "remove": ["quotes"]}, "remove is for task '20newsgroups', got task 'rte'"),
        ({"task": "rte", "join_documents": True}, "join_documents is for token-classification, got data for class"),
    ],
)
def test_what_does_not_fit_the_task_is_named_before_anything_is_read(values, part):
    assert [part in error for error in task_errors(values)] == [True]
    with pytest.raises(ConfigError) as caught:
        load_data(DataOptions(**values))
    assert part in str(caught.value)
    with pytest.raises(RecipeError) as caught:
        build_recipe({"model": "m", "method": "lora", "data": values})
    assert part in str(caught.value)


def test_all_problems_are_told_together():
    with pytest.raises(ConfigError, match=r"max_train.*max_test"):
        DataOptions(path="a", max_train=0, max_test=-1)


def test_good_values_pass_and_lists_become_tuples():
    options = DataOptions(task="20newsgroups", remove=["quotes"], labels=["sci.med", "sci.space"], max_train=5)
    assert options.remove == ("quotes",)
    assert options.labels == ("sci.med", "sci.space")
    assert hash(options) == hash(DataOptions(**{f.name: getattr(options, f.name) for f in fields(options)}))


def test_importing_options_tasks_and_load_imports_nothing_heavy():
    code = (
        "import sys, types, pathlib\n"
        "package = types.ModuleType('foretoken'); package.__path__ = [sys.argv[1]]\n"  # without its __init__
        "sys.modules['foretoken'] = package\n"
        "import foretoken.data.options, foretoken.data.tasks.table, foretoken.data.load\n"
        "new = {name.split('.')[0] for name in set(sys.modules)}\n"
        "heavy = {'datasets', 'sklearn', 'pyarrow', 'numpy', 'torch', 'transformers', 'pandas', 'scipy'}\n"
        "print('imported:', *sorted(new & heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(foretoken.errors.__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "imported:"
