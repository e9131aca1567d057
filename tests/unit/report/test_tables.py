import csv
import io
import statistics

import pytest

from foretoken.report.account import summary_lines, warnings_of
from foretoken.report.render.latex import document, latex
from foretoken.report.render.table import Cell, Table, markdown
from foretoken.report.runs.compare import compare
from foretoken.report.runs.groups import collect
from foretoken.report.runs.records import find_runs
from foretoken.report.tables.benchmarks import benchmark_table
from foretoken.report.tables.matrices import ece_table, main_table, paper_table
from foretoken.report.tables.origin import protocol_lines
from foretoken.report.tables.sheets import groups_csv, runs_csv
from foretoken.report.tables.task import (
    budget_table,
    calibration_table,
    candidates_table,
    document_tests_table,
    left_out_table,
    metrics_table,
    seed_tests_table,
    seeds_table,
    untested,
)
from foretoken.report.write import write_report

from support.made_runs import make_run, recipe, scores

PEARSON = {"pearson": 0.8}
LORA, BITFIT = [0.80, 0.82, 0.87], [0.70, 0.71, 0.69]


@pytest.fixture
def two_methods(tmp_path):
    for method, values, validation in (("lora", LORA, 0.9), ("bitfit", BITFIT, 0.8)):
        for seed, value in enumerate(values):
            make_run(tmp_path / f"{method}{seed}", method, seed=seed, test=value, validation=validation)
    return tmp_path


def results(folder):
    return collect(find_runs([folder]))


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def column(table, name):
    return [row[table.header.index(name)] for row in table.rows]


def test_the_main_table_has_methods_as_rows_and_tasks_as_columns(two_methods):
    make_run(two_methods / "news", "lora", task="news", test=0.5)
    table = main_table(results(two_methods))
    mean, std = statistics.mean(LORA), statistics.stdev(LORA)
    assert table.header == ("Method", "Trained %", "F1 (macro)", "F1 (macro)", "Seeds")
    assert table.heads == (("", 2), ("mail", 1), ("news", 1), ("", 1))
    assert texts(table) == [
        ["bitfit", "1.5", "70.0 ± 1.0", "-", "3"],
        ["lora", "1.5", f"{100 * mean:.1f} ± {100 * std:.1f}", "50.0", "1 to 3"],
    ]


def test_the_best_is_marked_and_the_last_is_never_second(two_methods):
    cells = column(main_table(results(two_methods)), "F1 (macro)")
    assert [cell.rank for cell in cells] == [0, 1]
    make_run(two_methods / "full", "full", test=0.75)
    cells = column(main_table(results(two_methods)), "F1 (macro)")
    assert [cell.rank for cell in cells] == [0, 2, 1]


def test_of_an_error_the_least_is_best(two_methods):
    cells = column(ece_table(results(two_methods)), "ECE")
    assert [cell.rank for cell in cells] == [0, 1]
    assert cells[1].text == f"{1 - statistics.mean(LORA):.3f} ± {statistics.stdev(LORA):.3f}"


def test_a_validation_score_is_marked_and_does_not_compete(two_methods):
    make_run(two_methods / "full", "full", validation=0.99, test=None)
    table = main_table(results(two_methods))
    cells = column(table, "F1 (macro)")
    assert cells[1].text == "99.0 †"
    assert [cell.rank for cell in cells] == [0, 0, 1]
    assert "† on validation: the test split was not looked at." in table.caption


def test_the_papers_table_has_macro_precision_and_recall_and_micro_f1(two_methods):
    make_run(
        two_methods / "sts", "lora", task="sts", metric="pearson", validation={"pearson": 0.9}, test={"pearson": 0.8}
    )
    table = paper_table(results(two_methods))
    assert table.header[2:] == ("P (macro)", "R (macro)", "F1 (micro)", "Pearson", "Seeds")
    assert table.heads == (("", 2), ("mail", 3), ("sts", 1), ("", 1))


def test_statistics_over_seeds(two_methods):
    row = dict(
        zip(
            seeds_table(results(two_methods), "mail").header,
            texts(seeds_table(results(two_methods), "mail"))[1],
            strict=True,
        )
    )
    assert row == {
        "Method": "lora",
        "n": "3",
        "Mean": "83.0",
        "Std": "3.6",
        "Median": "82.0",
        "Min": "80.0",
        "Max": "87.0",
        "Validation": "90.0 ± 0.0",
    }


def test_every_metric_and_calibration_are_tables_of_their_own(two_methods):
    found = results(two_methods)
    assert "ECE" not in metrics_table(found, "mail").header
    assert calibration_table(found, "mail").header == ("Method", "ECE", "ECE (equal mass)", "Brier")
    make_run(
        two_methods / "sts", "lora", task="sts", metric="pearson", validation={"pearson": 0.9}, test={"pearson": 0.8}
    )
    assert calibration_table(results(two_methods), "sts") is None


def test_what_equals_accuracy_in_every_run_is_shown_once(two_methods):
    table = metrics_table(results(two_methods), "mail")
    assert table.header == ("Method", "Accuracy", "P (macro)", "R (macro)", "F1 (macro)")
    assert "P (micro), R (micro), F1 (micro): equal to accuracy" in table.caption
    make_run(two_methods / "full", "full", test=scores(0.8) | {"f1_micro": 0.7})
    table = metrics_table(results(two_methods), "mail")
    assert table.header == ("Method", "Accuracy", "F1 (micro)", "P (macro)", "R (macro)", "F1 (macro)")
    header = csv.DictReader(io.StringIO(runs_csv(results(two_methods)))).fieldnames
    assert {"test/precision_micro", "test/f1_micro"} <= set(header)


def test_parts_of_a_test_split_are_columns(tmp_path):
    make_run(tmp_path / "run", test={"accuracy": 0.8}, record={"test_parts": {"mismatched": {"accuracy": 0.7}}})
    table = metrics_table(results(tmp_path), "mail")
    assert table.header == ("Method", "Accuracy", "Accuracy, mismatched")
    assert texts(table) == [["lora", "80.0", "70.0"]]


def test_candidates_show_validation_only(tmp_path):
    for rate, value in ((0.1, 0.8), (0.2, 0.7)):
        make_run(tmp_path / str(rate), learning_rate=rate, validation=value, test=0.123)
    table = candidates_table(results(tmp_path))
    assert texts(table) == [
        ["mail", "lora", "minilm", "learning_rate=0.1", "yes", "1", "80.0"],
        ["mail", "lora", "minilm", "learning_rate=0.2", "", "1", "70.0"],
    ]


def test_the_budget_table_is_the_mean_of_all_draws(tmp_path):
    for rate, value in enumerate((0.5, 1.0), start=1):
        make_run(tmp_path / str(rate), learning_rate=rate, validation=value)
    table = budget_table(results(tmp_path), "mail")
    assert table.header == ("Method", "k = 1", "k = 2")
    assert [cell.value for cell in table.rows[0][1:]] == [0.75, 0.875]  # of 2 draws, 3 in 4 have the 1.0
    assert budget_table(results(tmp_path / "1"), "mail") is None


def test_the_tests_say_why_there_is_none(tmp_path):
    make_run(tmp_path / "a", "lora", validation=0.9)
    make_run(tmp_path / "b", "bitfit")
    found = compare(results(tmp_path))
    assert seed_tests_table(found, "mail") is document_tests_table(found, "mail") is None
    over_seeds, over_documents = untested(found, "mail")
    assert over_seeds == "mail, over seeds: no test possible with one seed (1 and 1)."
    assert over_documents.startswith("mail, over documents: ")
    assert untested(found, "other") == []


def test_a_pair_without_a_test_is_listed_beside_those_that_have_one(tmp_path):
    for seed, value in enumerate((0.8, 0.9)):
        make_run(tmp_path / f"a{seed}", "lora", seed=seed, validation=0.9, test=value)
        make_run(tmp_path / f"b{seed}", "bitfit", seed=seed, validation=0.8, test=value - 0.2)
    make_run(tmp_path / "c", "full")
    found = compare(results(tmp_path))
    table = seed_tests_table(found, "mail")
    assert {cell.text for cell in column(table, "Not possible")} == {"", "no test possible with one seed (2 and 1)"}
    assert "-" in {cell.text for cell in column(table, "p two-sided")}
    assert [line for line in untested(found, "mail") if "seeds" in line] == []


def test_runs_that_are_left_out_are_listed(two_methods):
    make_run(two_methods / "bad", seed=7, record={"status": "failed", "error": "full"})
    (row,) = texts(left_out_table(results(two_methods)))
    assert row == ["bad", str(two_methods / "bad"), "failed", "mail", "lora", "7", "full"]


def test_csv_comes_back_as_it_was(two_methods):
    make_run(two_methods / "bad", seed=7, record={"status": "failed", "error": 'a "quote", and\na line'})
    found = results(two_methods)
    rows = list(csv.DictReader(io.StringIO(runs_csv(found))))
    assert len(rows) == 7
    by_folder = {row["folder"].rpartition("/")[2]: row for row in rows}
    assert float(by_folder["lora2"]["test/f1_macro"]) == 0.87
    assert by_folder["lora2"]["chosen"] == "True"
    assert by_folder["bad"]["reason"] == 'a "quote", and\na line'
    groups = list(csv.DictReader(io.StringIO(groups_csv(found))))
    (row,) = [g for g in groups if (g["method"], g["split"], g["metric"]) == ("lora", "test", "f1_macro")]
    assert float(row["mean"]) == pytest.approx(statistics.mean(LORA))
    assert float(row["std"]) == pytest.approx(statistics.stdev(LORA))
    assert (row["n"], row["seeds"]) == ("3", "0 1 2")


def test_markdown_keeps_the_table_whole():
    table = Table("T", ("Method", "F1"), ((Cell("a|b\n<i>"), Cell("1.0", 1.0, 1)),), heads=(("", 1), ("mail", 1)))
    lines = markdown(table).splitlines()
    assert lines[2] == "| Method | mail: F1 |"
    assert lines[4] == r"| a\|b \<i\> | **1.0** |"


def test_latex_escapes_what_users_write():
    table = Table("T_1", ("Method", "F1"), ((Cell(r"50% a_b & {c} \d #1 $ ~ ^ <"), Cell("1 ± 2", 1.0, 2)),))
    text = latex(table)
    assert r"50\% a\_b \& \{c\} \textbackslash{}d \#1 \$ \textasciitilde{} \textasciicircum{} \textless{}" in text
    assert r"\underline{1 $\pm$ 2} \\" in text
    assert r"\caption{T\_1.}" in text


def test_latex_has_a_rule_under_each_task(two_methods):
    text = document([paper_table(results(two_methods))])
    assert r"\multicolumn{2}{c}{} & \multicolumn{3}{c}{mail} & \multicolumn{1}{c}{} \\" in text
    assert r"\cmidrule(lr){3-5}" in text
    assert text.count(r"\begin{tabular}{lrrrrr}") == 1
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count("&") for line in rows} == {5}


def test_the_summary_says_what_was_compared_what_is_best_and_what_that_means(two_methods):
    found = results(two_methods)
    scope, line, tests = summary_lines(found, compare(found))
    assert scope == "6 of 6 runs counted: 2 methods on 1 task with 1 model, 3 seeds each."
    assert line.startswith("mail: lora is best with F1 (macro) 83.0 on test")
    assert tests.startswith("Separated: p < 0.05")


def test_where_nothing_was_tested_the_summary_does_not_explain_tests(tmp_path):
    make_run(tmp_path / "a", "lora", test=0.9)
    make_run(tmp_path / "b", "bitfit", test=0.8)
    found = results(tmp_path)
    assert len(summary_lines(found, compare(found))) == 2


def test_what_makes_runs_less_comparable_is_said(tmp_path):
    make_run(tmp_path / "a" / "run", seed=0)
    make_run(tmp_path / "b" / "run", seed=1, record={"versions": {"torch": "2.6.0"}, "hardware": {"gpu": "H200"}})
    make_run(tmp_path / "c", "bitfit", metric="accuracy")
    lines = " ".join(warnings_of(results(tmp_path)))
    assert "different versions: torch 2.13.0, 2.6.0" in lines
    assert "2 kinds of machine" in lines
    assert "More than one run has the name run;" in lines
    assert "chose their checkpoints by accuracy, f1_macro; all are compared by f1_macro" in lines
    make_run(tmp_path / "alone" / "x")
    assert warnings_of(results(tmp_path / "alone")) == []


def test_problems_of_all_kinds_stand_beside_each_other(tmp_path):
    generation = {"bleu": 0.3, "rougeL": 0.4}
    make_run(
        tmp_path / "g",
        task="webnlg",
        metric="bleu",
        validation=generation,
        test=generation,
        record={"problem": "generation"},
    )
    make_run(tmp_path / "c", test=scores(0.7))
    table = main_table(results(tmp_path))
    assert table.header[2:4] == ("F1 (macro)", "BLEU")
    assert texts(table)[0][2:4] == ["70.0", "30.0"]


def test_the_mean_over_glue_names_the_tasks_that_are_missing(tmp_path):
    rte, mrpc = {"accuracy": 0.6, "f1_macro": 0.1}, {"accuracy": 0.8, "f1": 0.9, "f1_macro": 0.1}
    matched = {"matched": {"accuracy": 0.7}, "mismatched": {"accuracy": 0.6}}
    make_run(tmp_path / "a", task="rte", test=rte)
    make_run(tmp_path / "b", task="mrpc", test=mrpc)
    make_run(tmp_path / "c", task="mnli", test={"accuracy": 0.1, "f1_macro": 0.1}, record={"test_parts": matched})
    make_run(tmp_path / "d", "full", task="rte", test=rte)
    make_run(tmp_path / "e", task="superglue-rte", test={"accuracy": 0.1, "f1_macro": 0.1})
    found = results(tmp_path)
    table = benchmark_table(found, "GLUE")
    expected = (0.6 + 0.85 + 0.65) / 3
    assert texts(table) == [
        ["lora", "minilm", f"{100 * expected:.1f}", "mrpc, mnli, rte", "cola, sst2, stsb, qqp, qnli"]
    ]
    assert benchmark_table(found, "SuperGLUE") is None  # GLUE's RTE is not SuperGLUE's, and one task is no mean


def test_the_median_stands_where_it_is_asked_for(tmp_path):
    for seed, value in enumerate((0.5, 0.6, 0.91)):
        make_run(tmp_path / str(seed), seed=seed, test=value)
    runs = find_runs([tmp_path])
    mean, median = (main_table(collect(runs, average=average)) for average in ("mean", "median"))
    assert (mean.rows[0][2].text, median.rows[0][2].text) == ("67.0 ± 21.4", "60.0 ± 21.4")
    assert (mean.caption[:4], median.caption[:6]) == ("Mean", "Median")


def test_a_protocol_is_said_once_for_the_runs_that_share_it_and_parts_no_group(tmp_path):
    for seed, said in enumerate(("On dev.", "On  dev.\n", None)):
        record = {"recipe": recipe("lora", seed=seed) | {"protocol": said}}
        make_run(tmp_path / str(seed), seed=seed, record=record)
    found = results(tmp_path)
    assert len(found.groups) == 1
    assert protocol_lines(found) == ["Protocol of mail: On dev."]


@pytest.mark.parametrize(
    ("said", "given", "shown"),
    [
        ('{"average": "median"}', None, "Median"),
        ('{"average": "median"}', "mean", "Mean"),
        ('{"average": "mean"}', None, "Mean"),
        ("{", None, "Mean"),
        (None, None, "Mean"),
        (None, "median", "Median"),
    ],
)
def test_a_report_of_a_sweep_shows_what_its_file_says(tmp_path, said, given, shown):
    for seed in range(3):
        make_run(tmp_path / "sweep" / f"run-{seed}", seed=seed)
    if said is not None:
        (tmp_path / "sweep" / "sweep.json").write_text(said)
    write_report([tmp_path / "sweep"], tmp_path / "report", average=given)
    assert f"{shown} ± standard deviation" in (tmp_path / "report" / "results.md").read_text()
