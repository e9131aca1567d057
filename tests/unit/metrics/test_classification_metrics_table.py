"""The table of metrics: which problem has which, and what is said about the others."""

import pytest

from foretoken.errors import ConfigError
from foretoken.metrics import METRICS, PROBLEMS, Metric, check_metric, metric_names

EXPECTED = {
    "regression": {"pearson", "spearman", "pearson_spearman", "mse"},
    "multiple-choice": {"accuracy", "ece", "brier", "nll", "aurc"},
    "candidates": {"accuracy", "ece", "brier", "nll", "aurc"},
    "token-classification": {"precision", "recall", "f1", "f1_macro", "accuracy"},
    "generation": {
        *("bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "meteor"),
        *("exact_match", "token_f1"),
    },
    "question-answering": {"exact_match", "token_f1"},
}
LOWER = {
    *("ece", "ece_mass", "ece_upper_edge", "mce", "ece_classwise", "brier", "nll", "aurc"),
    *("mse", "ter", "loss"),
}


@pytest.mark.parametrize("problem", EXPECTED)
@pytest.mark.parametrize("num_classes", [None, 1, 9])
def test_problems_other_than_classification(problem, num_classes):
    names = metric_names(num_classes, problem)
    assert set(names) == EXPECTED[problem] | {"loss"}
    assert names[-1] == "loss"


def test_every_problem_is_covered():
    assert {*EXPECTED, "classification"} == set(PROBLEMS)
    assert {problem for metric in METRICS.values() for problem in metric.problems} == set(PROBLEMS)


def test_classes():
    assert set(metric_names(2)) - set(metric_names(3)) == {"precision", "recall", "f1", "roc_auc"}
    assert metric_names(None) == metric_names(3) == metric_names(20)
    assert len(metric_names(3)) == len(set(metric_names(3))) == 17


def test_rows():
    assert METRICS["ece"].title == "Expected calibration error"
    assert {name for name, metric in METRICS.items() if not metric.greater_is_better} == LOWER
    titles = [metric.title for metric in METRICS.values() if isinstance(metric, Metric)]
    assert len(set(titles)) == len(METRICS)


def test_unusable_questions():
    with pytest.raises(ConfigError, match="num_classes is 1; classification needs at least 2"):
        metric_names(1)
    with pytest.raises(ConfigError, match=r"no problem 'generatoin' \(did you mean 'generation'\?\)"):
        metric_names(2, "generatoin")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("f1", 3), "f1 needs exactly 2 classes, and there are 3; use f1_macro or f1_micro"),
        (("roc_auc", 3), "roc_auc needs exactly 2 classes, and there are 3; use accuracy or f1_macro"),
        (("recall", None), "recall needs exactly 2 classes, and their number is not known"),
        (("bleu", 2), r"classification has no metric 'bleu'; use one of accuracy, "),
        (("f1", None, "regression"), "regression has no metric 'f1'; use one of pearson, "),
        (("acuracy", 2), r"no metric 'acuracy' \(did you mean 'accuracy'\?\)"),
        (("exact_match", 2), "classification has no metric 'exact_match'"),
    ],
)
def test_metrics_that_the_data_do_not_have(arguments, message):
    with pytest.raises(ConfigError, match=message):
        check_metric(*arguments)


def test_metrics_that_the_data_have():
    check_metric("precision", 2)
    check_metric("f1", 9, "token-classification")
    check_metric("loss", None, "generation")
    check_metric("exact_match", 2, extra=("exact_match",))
