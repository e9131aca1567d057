"""Entity scores against a second reading of the conlleval rules, on both taggings."""

import random

import pytest
from sklearn.metrics import classification_report

from foretoken.data.readers.tagging.sentences import to_iob2
from foretoken.errors import DataError
from foretoken.metrics.spans import span_metrics, tag_metrics

KINDS = ("PER", "LOC", "ORG")


def naive_entities(tags):
    """Return (type, first, last) by conlleval's rules: walk the words, and close what was open when it ends.

    An entity begins at B-X, and at I-X where the word before is O or of another type; it goes on over I-X.
    """
    found, start = [], None
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        goes_on = start is not None and mark == "I" and kind == tags[start][2:]
        if start is not None and not goes_on:
            found.append((tags[start][2:], start, place - 1))
            start = None
        if mark != "O" and start is None:
            start = place
    return set(found)


def naive_counts(true, predicted, kind=None):
    hits = guessed = present = 0
    for tags, guesses in zip(true, predicted, strict=True):
        one = {entity for entity in naive_entities(tags) if kind in (None, entity[0])}
        other = {entity for entity in naive_entities(guesses) if kind in (None, entity[0])}
        hits, guessed, present = hits + len(one & other), guessed + len(other), present + len(one)
    return hits, guessed, present


def naive_scores(hits, guessed, present):
    precision = hits / guessed if guessed else 0.0
    recall = hits / present if present else 0.0
    return precision, recall, 2 * hits / (guessed + present) if guessed + present else 0.0


def random_tags(chance, length):
    return [chance.choice(["O", *(f"{mark}-{kind}" for mark in "BI" for kind in KINDS)]) for _ in range(length)]


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_naive_counts_on_any_tags(seed):
    chance = random.Random(seed)
    true = [random_tags(chance, chance.randint(0, 12)) for _ in range(15)]
    # Mostly right, or hits would be too rare to tell anything.
    predicted = [[tag if chance.random() < 0.8 else random_tags(chance, 1)[0] for tag in tags] for tags in true]
    got = span_metrics(true, predicted)
    precision, recall, f1 = naive_scores(*naive_counts(true, predicted))
    by_type = {kind: naive_scores(*naive_counts(true, predicted, kind)) for kind in KINDS}
    pairs = [pair for rows in zip(true, predicted, strict=True) for pair in zip(*rows, strict=True)]
    assert got == pytest.approx(
        {
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "f1_macro": sum(scores[2] for scores in by_type.values()) / len(KINDS),
            "accuracy": sum(tag == guess for tag, guess in pairs) / len(pairs),
        }
    )
    assert all(type(value) is float for value in got.values())


@pytest.mark.parametrize("seed", range(10))
def test_both_taggings_hold_the_same_entities(seed):
    tags = random_tags(random.Random(seed), 40)
    converted = to_iob2(tags)
    assert naive_entities(converted) == naive_entities(tags)
    assert to_iob2(converted) == converted
    # In IOB2 an I-X only ever follows a B-X or I-X.
    for before, tag in zip(["O", *converted], converted, strict=False):
        assert not tag.startswith("I-") or before[2:] == tag[2:]
    assert span_metrics([tags], [converted])["f1"] == 1.0


@pytest.mark.parametrize(
    ("true", "predicted"), [(["O"], ["O"]), (["O"], ["B-PER"]), (["B-PER"], ["O"]), (["B-PER"], ["B-LOC"])]
)
def test_absent_entities_score_0_without_a_warning(true, predicted):
    got = span_metrics([true], [predicted])
    assert [got[name] for name in ("precision", "recall", "f1", "f1_macro")] == [0, 0, 0, 0]
    assert got["accuracy"] == float(true == predicted)


def test_types_may_have_dashes():
    tags = [["B-creative-work", "I-creative-work", "B-creative"]]
    assert span_metrics(tags, [["B-creative-work", "I-creative-work", "O"]])["recall"] == 0.5


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        ([["O"]], [["O"], ["O"]], "2 predicted sentences for 1 true"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "sentence 2 has 1 predicted tags for 2 words"),
        ([["PER"]], [["O"]], "sentence 1 has the tag 'PER'; expected O, B-<type> or I-<type>"),
        ([["O"]], [["B-"]], "sentence 1 of the predictions has the tag 'B-'"),
        ([], [], "no words to score"),
    ],
)
def test_unusable_tags_are_refused(true, predicted, message):
    with pytest.raises(DataError, match=message):
        span_metrics(true, predicted)


def test_metrics_of_tags_that_mark_no_entities_are_those_of_scikit_learn():
    chance = random.Random(0)
    true, predicted = ([[chance.choice("NVX.") for _ in range(size)] for size in range(1, 20)] for _ in range(2))
    flat = [tag for tags in true for tag in tags], [tag for tags in predicted for tag in tags]
    report = classification_report(*flat, output_dict=True, zero_division=0)
    got = tag_metrics(true, predicted)
    assert got["f1_macro"] == pytest.approx(report["macro avg"]["f1-score"])
    assert [got[name] for name in ("accuracy", "f1", "precision", "recall")] == pytest.approx([report["accuracy"]] * 4)
    with pytest.raises(DataError, match="no words to score"):
        tag_metrics([], [])
