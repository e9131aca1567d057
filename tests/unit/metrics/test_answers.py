"""Exact match and word overlap worked by hand, and by a slow count of our own."""

import random

import pytest

from foretoken.errors import DataError
from foretoken.metrics.answers import answer_metrics, exact_match, normalise_answer, token_f1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Cat", "cat"),
        ("a an the", ""),
        ("  two\t words\n", "two words"),
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),
        ("theatre and another", "theatre and another"),  # articles are whole words
        ("a.", ""),  # punctuation goes first, so this is an article
        ("the, end", "end"),
        ("«Ça»", "«ça»"),  # ASCII punctuation alone
        ("", ""),
    ],
)
def test_normalised(text, expected):
    assert normalise_answer(text) == expected


def naive_f1(prediction, reference):
    """Cross out common words one by one."""
    guessed, left = normalise_answer(prediction).split(), normalise_answer(reference).split()
    size = len(left)
    if not guessed or not left:
        return float(guessed == left)
    hits = 0
    for word in guessed:
        if word in left:
            left.remove(word)
            hits += 1
    precision, recall = hits / len(guessed), hits / size
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def test_overlap_equals_crossing_out():
    chance = random.Random(0)
    for _ in range(300):
        one, other = (" ".join(chance.choices([*"bcde", "the"], k=chance.randint(0, 6))) for _ in range(2))
        assert token_f1(one, other) == pytest.approx(naive_f1(one, other))
        assert exact_match(one, other) == (normalise_answer(one) == normalise_answer(other))


ROWS = ["white", "in the barn", ""]
REFERENCES = [["white", "white", "white fur"], ["barn", "a barn"], ["no"]]


def test_the_best_reference_counts():
    # in barn / barn: precision 1/2, recall 1
    got = answer_metrics(ROWS, REFERENCES)
    assert got == pytest.approx({"exact_match": 1 / 3, "token_f1": (1 + 2 / 3 + 0) / 3})


def test_leaving_one_out_is_never_above_the_best():
    chance = random.Random(1)
    words = ["red", "blue", "dark", "light"]
    for _ in range(50):
        known = [" ".join(chance.choices(words, k=2)) for _ in range(chance.randint(1, 4))]
        text = " ".join(chance.choices(words, k=2))
        best, fair = (answer_metrics([text], [known], leave_one_out=flag)["token_f1"] for flag in (False, True))
        naive = [
            max(naive_f1(text, other) for other in (known[:i] + known[i + 1 :] or known)) for i in range(len(known))
        ]
        assert fair == pytest.approx(sum(naive) / len(naive))
        assert fair <= best + 1e-12


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (["a"], [["a"], ["b"]], "1 predictions for 2 rows"),
        ([], [], "no predictions"),
        (["a", "b"], [["a"], []], r"row 1 has the references \[\]"),
        (["a"], ["a"], "row 0 has the references 'a'; expected a list"),
        (["a"], [["a", None]], "row 0 has the references"),
        ([None], [["a"]], "row 0 has the prediction None; expected a text"),
    ],
)
def test_unusable_texts_are_refused(predictions, references, message):
    with pytest.raises(DataError, match=message):
        answer_metrics(predictions, references)
