"""The sweep file: read whole, refused with all its errors, expanded to variants and runs."""

import json

import pytest

from foretoken.errors import RecipeError
from foretoken.sweeps.plan import load_plan, run_name


def lines(path, *overrides):
    with pytest.raises(RecipeError) as refused:
        load_plan(path, overrides)
    first, *rest = [line.strip() for line in str(refused.value).splitlines()]
    assert first == f"{path}: {len(rest)} error{'s' * (len(rest) > 1)}"
    return rest


def test_every_combination_is_a_variant_with_its_own_recipe(write):
    plan = load_plan(write(compare__max_length=[64, 128]))
    assert [item.name for item in plan.variants] == ["lora-64", "lora-128", "prefix-tuning-64", "prefix-tuning-128"]
    recipe = plan.recipe(plan.variants[3], {"training.learning_rate": 0.01}, 7)
    assert (recipe.method, recipe.max_length) == ({"name": "prefix-tuning", "num_virtual_tokens": 4}, 128)
    assert (recipe.training.learning_rate, recipe.training.seed) == (0.01, 7)
    assert recipe.run_folder.as_posix() == "sweeps/sweep/prefix-tuning-128/learning_rate=0.01-seed7"


def test_the_baselines_are_measured_once_for_each_split(write):
    method = ["tf-idf", "lora", "bitfit"]
    plan = load_plan(write(compare={"method": method, "data.path": ["a.csv", "b.csv"]}, recipe__data={"folds": 2}))
    runs = [(item, *repeat) for item in plan.variants for repeat in item.repeats]
    having = [run for run in runs if plan.recipe(run[0], {}, *run[1:]).baselines]
    expected = [(f"lora-{data}", 0, fold) for data in ("a.csv", "b.csv") for fold in (0, 1)]
    assert [(item.name, seed, fold) for item, seed, fold in having] == expected
    off = load_plan(write(recipe__baselines=False))
    assert not off.recipe(off.variants[0], {}, 0).baselines


def test_what_is_compared_may_be_given_names(write):
    named = {"low rank": {"name": "lora", "r": 2}, "lower": {"name": "lora", "r": 1}}
    first, second = load_plan(write(compare={"method": named})).variants
    assert (first.name, second.name, first.values["method"]["r"]) == ("low_rank", "lower", 2)


def test_values_of_a_text_are_texts_whatever_they_look_like(tmp_path):
    columns = {"recipe": {"model": "minilm", "method": "lora", "data": {"path": "a.csv"}}, "search": {"space": {}}}
    (tmp_path / "s.yaml").write_text(
        f"{json.dumps(columns)[:-1]}, compare: {{data.text_column: [0, '#1', 010, yes]}}}}"
    )
    plan = load_plan(tmp_path / "s.yaml", ["--data.label_column", "1e3"])
    data = [plan.recipe(variant, {}, 0).data for variant in plan.variants]
    assert [item.text_column for item in data] == ["0", "#1", "010", "yes"]
    assert {item.label_column for item in data} == {"1e3"}


def test_seeds_may_differ_between_variants(write):
    rule = {"when": {"method.name": "lora"}, "seeds": [5, 6, 7]}
    lora, prefix = load_plan(write(per=[rule], seeds_for="selected")).variants
    assert (lora.seeds, lora.search_seeds, prefix.seeds, prefix.search_seeds) == ([5, 6, 7], [5], [0, 1], [0])


def test_all_errors_come_at_once_and_say_where_they_stand(write):
    space = {"training.learning_rat": [0.1], "training.epochs": [1, 0], "max_length": {"low": 9, "high": 2, "step": 1}}
    path = write(search__space=space, metric="f1_macr", seed=[1], recipe__data__paht="x")
    assert lines(path) == [
        "seed: no such key (did you mean 'seeds'?)",
        "search.space: max_length: low 9 is above high 2",
        "recipe: data.paht: no such key (did you mean 'path'?)",
        "search.space: training.learning_rat: no such key (did you mean 'learning_rate'?)",
        "metric: training.metric: no metric 'f1_macr' (did you mean 'f1_macro'?)",
        "search.space: training.epochs: got 0, expected at least 1",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"search__strategy": "tpe"}, "search: tpe needs trials, the number of candidates"),
        ({"search__trials": 3}, "search: a grid runs all its points; leave out trials, or choose random or tpe"),
        ({"search__strategy": "gird"}, "search.strategy: got 'gird' (a text), expected `grid` or `random` or `tpe`"),
        ({"search__space": {"max_length": []}}, "search.space: max_length: the list of choices is empty"),
        ({"search__space": {"max_length": 3}}, "expected a list of choices or {low: ..., high: ...}"),
        ({"search__space": {"max_length": {"low": 2, "high": 4}}}, "a grid needs a list of choices, or a step"),
        ({"search__space": {"max_length": [2, 2]}}, "search.space: max_length: the choice 2 is given twice"),
        ({"compare__method": "lora"}, "compare: method: got 'lora', expected a list of values, or a value per name"),
        ({"compare__method": ["lora", "prefix-tunning"]}, "compare: method.name: "),
        ({"seeds": [1, 1]}, "seeds: got [1, 1], expected one or more, each once"),
        ({"recipe__model": None}, "recipe: model: is required"),
        ({"recipe__data": {"path": "mail.csv", "folds": 1}}, "recipe: data.folds: got 1, expected at least 2"),
        ({"recipe": "none.yaml"}, "no such recipe file"),
        ({"recipe": 3}, "recipe: got 3, expected the name of a recipe file or a group of keys"),
        ({"per": [{"when": {"method.name": "lorra"}}]}, "per[0].when: no variant has method.name: lorra"),
        ({"per": [{"when": {"method.name": "lora"}, "set": {"method.rr": 1}}]}, "per[0].set: method.rr: "),
        ({"storage": "sqlite:///x.db"}, "storage: left foretoken: leave it out; a sweep's state is in the folders"),
        ({"prune": {"after": 2}}, "prune: left foretoken: leave it out; training.early_stopping_patience"),
        ({"name": "a/b"}, "name: got 'a/b', which holds the character '/'; expected a plain folder name"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write, changes, said):
    found = lines(write(**changes))
    assert any(said in line for line in found), found


def test_rules_hold_for_the_variants_that_they_name(write):
    rules = [
        {"when": {"method.name": "prefix-tuning"}, "space": {"method.num_virtual_tokens": [2, 4]}},
        {
            "when": {"method.name": ["lora", "bitfit"]},
            "set": {"training.epochs": 3, "training.metric": "accuracy"},
            "space": {"training.learning_rate": [0.5]},
        },
    ]
    lora, prefix = load_plan(write(per=rules)).variants
    assert list(prefix.space) == ["training.learning_rate", "method.num_virtual_tokens"]
    assert (lora.metric, prefix.metric) == ("accuracy", "f1_macro")
    assert lora.space["training.learning_rate"].grid == (0.5,)
    assert lora.values["training"]["epochs"] == 3


def test_overrides_change_the_base_but_not_what_the_sweep_varies(write):
    plan = load_plan(write(), ["--training.epochs", "7"])
    assert plan.recipe(plan.variants[0], {"training.learning_rate": 0.1}, 0).training.epochs == 7
    assert lines(write(), "--training.learning_rate", "1", "--method", "full", "--name", "x") == [
        "--training.learning_rate: is searched by the sweep; change it in the file",
        "--method: is compared by the sweep; change it in the file",
        "--name: is set by the sweep; change it in the file",
    ]


def test_the_recipe_lies_beside_the_sweep_file(write, tmp_path):
    (tmp_path / "base.yaml").write_text("{model: tiny, data: {path: mail.csv}, method: bitfit}")
    assert load_plan(write(recipe="base.yaml")).variants[0].values["model"] == "tiny"


def test_run_names_tell_values_apart_that_print_alike(write):
    variant = load_plan(write()).variants[0]
    near = [0.12345678901, 0.12345678902, 1e-3, 2e-3]
    texts = ["a b" * 40, "a_b" * 40, "a/b"]
    values = [{"training.learning_rate": value} for value in near] + [{"model": text} for text in texts]
    names = [run_name(variant, params, 0) for params in values]
    assert len(set(names)) == len(names)
    assert all(name.count("/") == 1 and " " not in name and len(name) < 100 for name in names)
    assert run_name(variant, {"a.rank": 1, "b.rank": 2}, 0) == "lora/a.rank=1,b.rank=2-seed0"
