import pytest

from support.made_runs import make_run, results


def test_seeds_of_one_recipe_are_one_group_whatever_their_names_and_threads(tmp_path):
    for seed, score in ((2, 0.9), (0, 0.7), (1, 0.8)):
        make_run(tmp_path / f"run{seed}", seed=seed, test=score, num_threads=seed + 1)
    (group,) = results(tmp_path).groups
    assert [run.seed for run in group.runs] == [0, 1, 2]
    assert group.values("f1_macro") == [0.7, 0.8, 0.9]
    assert group.values("f1_macro", "validation") == [0.8] * 3


def test_the_candidate_is_chosen_by_validation_and_never_by_test(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / f"good{seed}", seed=seed, learning_rate=0.01, validation=0.8, test=0.5)
        make_run(tmp_path / f"lucky{seed}", seed=seed, learning_rate=0.02, validation=0.7, test=0.99)
    found = results(tmp_path)
    assert [group.setting for group in found.groups] == ["learning_rate=0.01", "learning_rate=0.02"]
    assert [group.setting for group in found.chosen] == ["learning_rate=0.01"]


def test_of_a_sweep_only_what_it_measured_on_test_is_chosen(tmp_path):
    # A sweep measures its choice on test; another candidate had one lucky seed, and another prefix length.
    for seed in (0, 1):
        make_run(tmp_path / f"chosen{seed}", seed=seed, options={"r": 4}, validation=0.8, test=0.7)
    make_run(tmp_path / "lucky", options={"r": 4}, learning_rate=0.5, validation=0.9, test=None)
    make_run(tmp_path / "other", options={"r": 8}, validation=0.85, test=None)
    found = results(tmp_path)
    assert len(found.groups) == 3
    assert [(group.label, len(group.runs)) for group in found.chosen] == [("lora (r=4)", 2)]


def test_a_copy_of_a_run_is_counted_once_and_listed(tmp_path):
    make_run(tmp_path / "a", test=None)
    make_run(tmp_path / "b", test=0.7)
    found = results(tmp_path)
    (group,) = found.groups
    assert [run.folder.name for run in group.runs] == ["b"]  # the one that knows its test score
    ((left, reason),) = found.left_out
    assert left.folder.name == "a"
    assert reason.startswith("same recipe and seed as")


def test_what_did_not_finish_is_left_out_with_its_reason(tmp_path):
    make_run(tmp_path / "done")
    for status in ("running", "pruned", "interrupted"):
        make_run(tmp_path / status, seed=1, record={"status": status})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    found = results(tmp_path)
    assert len(found.runs) == 5
    assert [run.folder.name for run in found.finished] == ["done"]
    assert {run.status for run, _ in found.left_out} == {"running", "pruned", "interrupted", "unreadable"}
    assert all(reason for _, reason in found.left_out)


def test_a_task_is_compared_by_the_metric_of_most_of_its_runs(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", seed=seed, metric="accuracy")
    make_run(tmp_path / "b", "bitfit", metric="f1_macro")
    assert {group.metric for group in results(tmp_path).groups} == {"accuracy"}


def test_a_candidate_without_a_score_is_never_chosen_over_one_with(tmp_path):
    make_run(tmp_path / "a", learning_rate=0.1, validation={"accuracy": 0.5, "f1_macro": None})
    make_run(tmp_path / "b", learning_rate=0.2, validation={"f1_macro": 0.1})
    (group,) = results(tmp_path).chosen
    assert group.validation == pytest.approx(0.1)
