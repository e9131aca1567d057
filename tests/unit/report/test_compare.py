import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from foretoken.report.runs.compare import compare
from foretoken.report.runs.documents import per_document

from support.made_runs import make_run, make_seeds, results, set_accuracy, write_predictions

GOOD, POOR = [0.80, 0.82, 0.87], [0.70, 0.71, 0.69]


def test_welch_over_seeds_is_that_of_its_definition(tmp_path):
    make_seeds(tmp_path, "lora", GOOD, validation=0.9)
    make_seeds(tmp_path, "bitfit", POOR, validation=0.8)
    (found,) = compare(results(tmp_path))
    assert (found.one.label, found.other.label) == ("lora", "bitfit")
    assert found.seeds.difference == pytest.approx(0.13)
    assert found.seeds.test.p_value == pytest.approx(stats.ttest_ind(GOOD, POOR, equal_var=False).pvalue)


def test_the_first_is_the_better_by_validation_whatever_the_test_and_the_metric_say(tmp_path):
    for method, errors, validation in (("lora", [2.0, 2.1, 2.3], 1.0), ("bitfit", [1.0, 1.1, 1.2], 2.0)):
        for seed, error in enumerate(errors):
            folder = tmp_path / f"{method}{seed}"
            make_run(folder, method, seed=seed, metric="mse", validation={"mse": validation}, test={"mse": error})
    (found,) = compare(results(tmp_path))
    assert found.one.label == "lora"
    assert found.seeds.difference > 0


def test_one_seed_and_equal_seeds_say_that_no_test_is_possible(tmp_path):
    make_seeds(tmp_path / "x", "lora", [0.8])
    make_seeds(tmp_path / "x", "bitfit", POOR)
    (found,) = compare(results(tmp_path / "x"))
    assert found.seeds.test is None
    assert "no test possible with one seed (" in found.seeds.reason
    make_seeds(tmp_path / "y", "lora", [0.8, 0.8])
    make_seeds(tmp_path / "y", "bitfit", [0.7, 0.7])
    (found,) = compare(results(tmp_path / "y"))
    assert "variance" in found.seeds.reason


def test_validation_scores_are_not_compared(tmp_path):
    make_seeds(tmp_path, "lora", [None, None], correct=[True, False])
    make_seeds(tmp_path, "bitfit", POOR, correct=[True, False])
    (found,) = compare(results(tmp_path))
    assert found.seeds.difference is None
    assert found.seeds.reason == "no test scores of lora"
    assert found.documents.reason == "the test split was not looked at with lora"


def test_p_values_are_corrected_within_a_task(tmp_path):
    for method, shift in (("lora", 0.1), ("bitfit", 0.05), ("full", 0.0)):
        make_seeds(tmp_path, method, [score + shift for score in GOOD], validation=0.5 + shift)
    found = compare(results(tmp_path))
    assert len(found) == 3
    raw = sorted(item.seeds.test.p_value for item in found)
    corrected = sorted(item.seeds.corrected for item in found)
    assert corrected[0] == pytest.approx(min(1, 3 * raw[0]))
    assert corrected[1] == pytest.approx(min(1, max(3 * raw[0], 2 * raw[1])))


def test_documents_are_the_mean_over_seeds_in_any_order(tmp_path):
    folders = [make_run(tmp_path / f"lora{seed}", seed=seed) for seed in (0, 1)]
    write_predictions(folders[0], [True, True, False, False], ids=list("abcd"))
    write_predictions(folders[1], [True, False, True, False], ids=list("dcba"))
    (group,) = results(tmp_path).chosen
    assert per_document(group) == {("", "a"): 0.5, ("", "b"): 1.0, ("", "c"): 0.0, ("", "d"): 0.5}


def test_other_documents_are_no_pairs(tmp_path):
    write_predictions(make_run(tmp_path / "a", "lora"), [True, False], ids=["1", "2"])
    write_predictions(make_run(tmp_path / "b", "bitfit"), [True, False], ids=["2", "3"])
    (found,) = compare(results(tmp_path))
    assert found.documents.test is None
    assert found.documents.reason == "the test documents differ (2 and 2, 1 in both)"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"split": ["test"], "id": ["a"]}, "no column label, prediction"),
        ({"split": ["test"] * 2, "id": ["a"] * 2, "label": ["x"] * 2, "prediction": ["x"] * 2}, "twice"),
    ],
)
def test_predictions_of_another_shape_are_said(tmp_path, columns, reason):
    folder = make_run(tmp_path / "run")
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    set_accuracy(folder, "test", 1.0)
    assert reason in per_document(results(tmp_path).chosen[0])


@pytest.mark.parametrize(
    ("problem", "label", "prediction", "value"),
    [
        ("regression", [1.0], [3.0], -4.0),
        ("token-classification", [["O", "B-PER", "O", "O"]], [["O", "O", "O", "O"]], 0.75),
        ("generation", [["the big dog", "no"]], ["big dog"], 1.0),
        ("candidates", ["paris"], ["rome"], 0.0),
    ],
)
def test_each_kind_of_task_has_its_measure(tmp_path, problem, label, prediction, value):
    folder = make_run(tmp_path / "run", record={"problem": problem})
    columns = {"split": ["test"], "id": ["a"], "part": [None], "label": label, "prediction": prediction}
    pq.write_table(pa.table(columns), folder / "predictions.parquet")
    assert per_document(results(tmp_path).chosen[0]) == {("", "a"): value}


def test_predictions_of_another_run_are_said_and_not_compared(tmp_path):
    right = np.arange(40) % 10 < 9
    folders = [make_run(tmp_path / name, name, correct=right) for name in ("lora", "bitfit")]
    write_predictions(make_run(tmp_path / "elsewhere" / "x"), right[:20] & False)
    (tmp_path / "elsewhere" / "x" / "predictions.parquet").replace(folders[0] / "predictions.parquet")
    (found,) = compare(results(*folders))
    assert found.documents.test is None
    assert found.documents.reason.startswith("lora: its predictions are of another run: their accuracy is 0.0000")
