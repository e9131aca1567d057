import pytest

from foretoken.errors import DataError
from foretoken.report.runs.labels import labels_of
from foretoken.report.runs.records import find_runs

from support.made_runs import make_run, recipe


def test_runs_are_found_at_any_depth_and_each_once(tmp_path):
    make_run(tmp_path / "a" / "deep" / "one")
    make_run(tmp_path / "b", seed=1)
    (tmp_path / "b" / "checkpoints" / "nested").mkdir(parents=True)
    (tmp_path / "b" / "checkpoints" / "nested" / "run.json").write_text("{}")
    found = find_runs([tmp_path, tmp_path / "b"])
    assert [run.folder.name for run in found] == ["one", "b"]


def test_a_run_says_what_its_record_holds(tmp_path):
    make_run(tmp_path / "run", "lora", task="mail", seed=3, learning_rate=0.01, correct=[True, False])
    run = find_runs([tmp_path])[0]
    assert (run.status, run.method, run.task, run.model, run.seed) == ("finished", "lora", "mail", "minilm", 3)
    assert (run.recipe["training"]["learning_rate"], run.metric, run.label, run.reason) == (
        0.01,
        "f1_macro",
        "lora",
        "",
    )
    assert run.predictions().column("id").to_pylist() == ["document-0", "document-1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"status": "fini', "run.json is no JSON"),
        ("[1]", "run.json is a list, expected an object"),
        ('{"status": "finished", "recipe": []}', "recipe is a list, expected an object"),
        ('{"status": "finished", "recipe": {}}', "the run is finished, but has no method"),
        ('{"status": "failed", "test_parts": {"seen": 3}}', "test_parts: seen is a int, expected an object"),
        ('{"status": "failed", "seed": "three"}', "seed is a str, expected a whole number"),
        ('{"status": "finished", "recipe": {"method": {"name": "lora"}}}', "no validation metrics"),
        ('{"recipe": {}}', "run.json has no status"),
        ('{"status": "failed", "epochs": [null]}', "epochs is a NoneType, expected an object"),
        (
            '{"status": "failed", "documents": {"train": {"length_quantiles": ["x"]}}}',
            "quantiles is a str, expected a number",
        ),
    ],
)
def test_a_broken_record_is_a_run_with_a_reason(tmp_path, text, reason):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(text)
    run = find_runs([tmp_path])[0]
    assert run.status == "unreadable"
    assert reason in run.reason
    assert (run.name, run.method, run.task, run.scores("test")) == ("run", "unknown", "unknown", {})


@pytest.mark.parametrize("left", ["predictions.parquet", "checkpoints/", "adapter/"])
def test_a_run_folder_without_a_record_is_listed(tmp_path, left):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / left
    path.mkdir() if left.endswith("/") else path.write_text("")
    run = find_runs([tmp_path])[0]
    assert (run.folder.name, run.status, run.reason) == ("run", "unreadable", "there is no run.json")


def test_no_folder_and_no_run_are_errors(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(DataError, match=r"no run in it; a run is a folder with a run\.json"):
        find_runs([tmp_path])


def test_scores_that_are_no_finite_number_are_left_out_and_parts_are_named(tmp_path):
    test = {"accuracy": 0.5, "f1": None, "mse": float("nan"), "note": "x", "yes": True}
    make_run(tmp_path / "run", test=test, record={"test_parts": {"seen": {"accuracy": 0.75}}})
    assert find_runs([tmp_path])[0].scores("test") == {"accuracy": 0.5, "seen/accuracy": 0.75}


def test_labels_show_the_options_that_differ():
    recipes = [
        recipe("lora", options={"r": 4, "alpha": 8}),
        recipe("lora", options={"r": 8, "alpha": 8}, task="news"),
        recipe("bitfit"),
        recipe("bitfit", data={"max_train": 10}),
    ]
    labels = labels_of(recipes)
    assert [label.method for label in labels] == ["lora (r=4)", "lora (r=8)", "bitfit", "bitfit"]
    assert [label.task for label in labels] == ["mail", "news", "mail", "mail (max_train=10)"]


def test_options_that_are_no_numbers_tell_lines_of_a_figure_apart():
    sizes = [{"variant": variant, "rank": rank} for variant in ("fc", "kronecker") for rank in (4, 8)]
    labels = labels_of([recipe("aot-p-tuning", options=options) for options in sizes])
    assert len({label.method for label in labels}) == 4
    assert [label.line for label in labels] == ["aot-p-tuning (variant=fc)"] * 2 + [
        "aot-p-tuning (variant=kronecker)"
    ] * 2


def test_models_of_the_same_folder_name_and_other_lengths_stay_apart():
    recipes = [
        recipe(model="/one/model"),
        recipe(model="/other/model"),
        recipe(model="org/name", max_length=128),
        recipe(model="org/name", max_length=512),
        recipe(model="org/name", max_length=64, task="news"),
    ]
    models = [label.model for label in labels_of(recipes)]
    assert len(set(models[:4])) == 4
    assert models[2:] == ["org/name (max_length=128)", "org/name (max_length=512)", "org/name"]


def test_a_run_that_failed_does_not_change_the_names_of_the_others(tmp_path):
    make_run(tmp_path / "good", options={"r": 4})
    make_run(tmp_path / "bad", options={"r": 8}, record={"status": "failed", "error": "full"})
    assert {run.label for run in find_runs([tmp_path])} == {"lora"}
