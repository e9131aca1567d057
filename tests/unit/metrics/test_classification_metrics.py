"""Accuracy, precision, recall and F1 against naive counts, and what is refused."""

import math

import numpy as np
import pytest
import torch
from seqeval.metrics import classification_report as seqeval_report
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from foretoken.errors import DataError
from foretoken.metrics import aurc, calibration, classification_metrics, metric_names
from foretoken.metrics import scores as proper
from foretoken.metrics.classification import ClassScores, best_and_worst, class_scores, confusion


def ratio(part, whole):
    return part / whole if whole else 0.0


def counts(labels, predicted, of):
    pairs = list(zip(labels, predicted, strict=True))
    hits = sum(label == of == guess for label, guess in pairs)
    return hits, sum(guess == of for _, guess in pairs), sum(label == of for label, _ in pairs)


def scores_of(hits, guessed, present):
    precision, recall = ratio(hits, guessed), ratio(hits, present)
    return precision, recall, ratio(2 * precision * recall, precision + recall)


def naive_metrics(labels, predicted):
    classes = sorted({*labels, *predicted})
    per_class = [scores_of(*counts(labels, predicted, of)) for of in classes]
    micro = scores_of(*np.sum([counts(labels, predicted, of) for of in classes], axis=0))
    macro = np.mean(per_class, axis=0)
    right = sum(label == guess for label, guess in zip(labels, predicted, strict=True))
    values = {"accuracy": right / len(labels), "matthews": naive_matthews(labels, predicted)}
    for suffix, triple in (("_micro", micro), ("_macro", macro), ("", scores_of(*counts(labels, predicted, 1)))):
        values |= {f"{name}{suffix}": value for name, value in zip(("precision", "recall", "f1"), triple, strict=True)}
    return values


def naive_matthews(labels, predicted):
    """Return the correlation of Gorodkin (2004): that of the one-hot tables of labels and predictions."""
    classes = sorted({*labels, *predicted})
    truth, guess = (
        np.array([[item == of for of in classes] for item in items], float) for items in (labels, predicted)
    )
    truth, guess = truth - truth.mean(0), guess - guess.mean(0)
    return ratio((truth * guess).sum(), math.sqrt((truth**2).sum() * (guess**2).sum()))


def confident(predicted, classes):
    """Return probabilities whose largest is at the predicted class."""
    return np.where(np.eye(classes)[predicted] == 1, 0.7, 0.3 / (classes - 1))


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_naive_counts(classes, seed):
    generator = np.random.default_rng(seed)
    labels, predicted = generator.integers(classes, size=(2, 40)).tolist()
    got = classification_metrics(confident(predicted, classes), labels)
    expected = naive_metrics(labels, predicted)
    assert (*got, "loss") == metric_names(classes)
    agreement = set(got) & set(expected)
    assert len(agreement) == (11 if classes == 2 else 8)
    for name in agreement:
        assert got[name] == pytest.approx(expected[name], abs=1e-12), name
    assert got["ece"] == got["mce"] == pytest.approx(abs(0.7 - expected["accuracy"]), abs=1e-6)
    assert all(type(value) is float for value in got.values())


@pytest.mark.parametrize(("labels", "predicted"), [([0, 0], [0, 0]), ([0, 0], [1, 1]), ([1, 1], [0, 0]), ([1], [1])])
def test_absent_classes_give_no_warning(labels, predicted):
    got = classification_metrics(confident(predicted, 2), labels)
    expected = naive_metrics(labels, predicted)
    assert {name: got[name] for name in expected} == pytest.approx(expected)


def test_equal_probabilities_predict_the_first_class():
    assert classification_metrics([[0.5, 0.5], [0.5, 0.5]], [0, 0])["accuracy"] == 1


def test_the_type_and_the_layout_in_memory_do_not_matter():
    scores, labels = np.random.default_rng(0).integers(1, 9, size=(40, 2)) / 16, np.arange(40) % 2
    scores[:, 1] = 1 - scores[:, 0]
    expected = classification_metrics(scores, labels)
    for given in (scores.tolist(), torch.tensor(scores), scores.astype(np.float16), np.asfortranarray(scores)):
        assert classification_metrics(given, labels.tolist()) == expected
    assert classification_metrics(scores[::-1].copy()[::-1], torch.tensor(labels)) == expected
    half = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)).bfloat16().softmax(-1).float()
    assert classification_metrics(half, [0] * 50)["ece"] >= 0  # sums are 1 but for rounding


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([0.5, 0.5], [0], r"shape \(2,\); expected \(rows, classes\)"),
        (np.zeros((0, 2)), [], "no predictions"),
        ([[0.5, 0.5], [1.0]], [0, 1], "not a table of numbers"),
        ([["a", "b"]], [0], "not a table of numbers"),
        ([[0.5, 0.5], [float("nan"), 0.5]], [0, 1], "row 1 of the probabilities has a NaN"),
        ([[3.0, -2.0]], [0], "are these logits"),
        ([[0.5, 0.4]], [0], "does not sum to 1"),
        ([[0.5, 0.5]], [0, 1], r"labels have shape \(2,\); expected \(1,\)"),
        ([[0.5, 0.5]], [0.0], "labels are of type float64; expected whole numbers"),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 2], r"label 2 \(row 1\) is not one of the 2 classes 0 to 1"),
    ],
)
def test_unusable_predictions_are_refused(probabilities, labels, message):
    with pytest.raises(DataError, match=message) as caught:
        classification_metrics(probabilities, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n_bins", [5, 15])
def test_calibration_is_that_of_the_functions(n_bins):
    generator = np.random.default_rng(0)
    scores, labels = generator.dirichlet(np.ones(4), size=200), generator.integers(4, size=200)
    got = classification_metrics(scores, labels, n_bins=n_bins)
    assert got["ece"] == calibration.expected_calibration_error(scores, labels, n_bins)
    assert got["ece_mass"] == calibration.expected_calibration_error(scores, labels, n_bins, strategy="mass")
    assert got["ece_upper_edge"] == calibration.upper_edge_calibration_error(scores, labels, 10)
    assert got["mce"] == calibration.maximum_calibration_error(scores, labels, n_bins)
    assert got["ece_classwise"] == calibration.classwise_calibration_error(scores, labels, n_bins)
    assert got["brier"] == proper.brier_score(scores, labels)
    assert got["nll"] == proper.negative_log_likelihood(scores, labels)
    assert got["aurc"] == aurc(scores, labels)


def test_the_roc_area_counts_pairs_in_order():
    generator = np.random.default_rng(0)
    scores, labels = generator.dirichlet(np.ones(2), size=60).round(1), generator.integers(2, size=60)
    ones, zeros = scores[labels == 1, 1], scores[labels == 0, 1]
    pairs = [(one > zero) + (one == zero) / 2 for one in ones for zero in zeros]  # a tie counts half
    assert classification_metrics(scores, labels)["roc_auc"] == pytest.approx(sum(pairs) / len(pairs))


def test_the_roc_area_of_a_single_class_is_that_of_chance():
    assert classification_metrics([[0.1, 0.9], [0.6, 0.4]], [1, 1])["roc_auc"] == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_each_class_is_as_scikit_learn_has_it(seed):
    generator = np.random.default_rng(seed)
    names = ["b", "a", "never", "z"]
    labels, predictions = (generator.choice(["a", "b", "z"], size=40).tolist() for _ in range(2))
    found = class_scores("classification", labels, predictions, names)
    expected = precision_recall_fscore_support(labels, predictions, labels=names, zero_division=0)
    assert [row.name for row in found] == names
    assert np.allclose([row[1:] for row in found], np.array(expected).T)
    assert (
        confusion("classification", labels, predictions, names)
        == confusion_matrix(labels, predictions, labels=names).tolist()
    )


@pytest.mark.parametrize("seed", range(5))
def test_each_label_of_several_is_as_scikit_learn_has_it(seed):
    generator = np.random.default_rng(seed)
    names, held = ["x", "y", "z"], generator.integers(2, size=(2, 30, 3))
    rows = [[[name for name, has in zip(names, row, strict=True) if has] for row in side] for side in held]
    expected = precision_recall_fscore_support(*held, zero_division=0)
    found = class_scores("multi-label-classification", *rows, names)
    assert np.allclose([row[1:] for row in found], np.array(expected).T)
    assert confusion("multi-label-classification", *rows, names) is None


def test_each_type_of_entity_is_as_seqeval_has_it():
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-PER"]]
    said = [["B-PER", "I-PER", "O", "B-PER"], ["B-ORG", "B-PER"]]
    tags = ["O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER"]
    expected = seqeval_report(true, said, output_dict=True, zero_division=0)
    found = class_scores("token-classification", true, said, tags)
    assert [row.name for row in found] == ["LOC", "ORG", "PER"]
    for name, *values in found:
        assert values == pytest.approx([expected[name][key] for key in ("precision", "recall", "f1-score", "support")])
    assert class_scores("regression", [1.0], [2.0]) == []


def test_of_many_classes_the_best_and_the_worst():
    rows = [ClassScores(f"c{number}", 0, 0, number / 100, number % 7) for number in range(100)]
    chosen = best_and_worst(rows)
    there = sorted((row.f1 for row in rows if row.support), reverse=True)
    assert [row.f1 for row in chosen] == [*there[:10], *there[-10:]]
    assert best_and_worst(rows[:20]) == rows[19::-1]
