"""Short answers against what people answered: exact match and overlap of words, as CoQA and SQuAD score them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from foretoken.metrics.checks import check_texts

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_metrics(
    predictions: Sequence[str], references: Sequence[Sequence[str]], *, leave_one_out: bool = False
) -> dict[str, float]:
    """Return ``exact_match`` and ``token_f1``, means over the rows, of predictions against their references.

    A row's score is that of its best reference, as in SQuAD. With ``leave_one_out`` a row with several
    references is scored as CoQA's evaluation script does: each reference is left out once, the best of the
    others counts, and these are averaged. People, measured against each other, have one reference
    fewer than a system has; this makes the two comparable (Reddy et al. 2019).

    Raises :class:`~foretoken.errors.DataError` for unequal lengths, and rows without a reference.

    >>> answer_metrics(["The white cat.", "yes"], [["a white cat"], ["yes, it was", "no"]])
    {'exact_match': 0.5, 'token_f1': 0.75}
    """
    check_texts(predictions, references)
    return {
        "exact_match": _mean(exact_match, predictions, references, leave_one_out),
        "token_f1": _mean(token_f1, predictions, references, leave_one_out),
    }


def span_metrics(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ``exact_match`` and ``token_f1`` of answers that were found in a context, as SQuAD 2.0's script has them.

    An empty text is the answer that there is none, and a row without references has none; references that
    :func:`normalise_answer` leaves nothing of do not count. Where rows with and without an answer are among them,
    ``has_answer_exact_match``, ``has_answer_token_f1`` and ``no_answer_exact_match`` (which is its F1 too) are of each.
    SQuAD 1.1's script has the same values, but for answers that are nothing but articles and punctuation.

    Raises :class:`~foretoken.errors.DataError` for unequal lengths, and no rows.

    >>> scores = span_metrics(["the cat", "a dog", ""], [["cat"], [], []])
    >>> {name: round(value, 2) for name, value in scores.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'exact_match': 0.67, 'token_f1': 0.67, 'has_answer_exact_match': 1.0, 'has_answer_token_f1': 1.0,
     'no_answer_exact_match': 0.5}
    """
    known = [[text for text in texts if normalise_answer(text)] or [""] for texts in references]
    values = answer_metrics(predictions, known)
    rows = list(zip(predictions, known, strict=True))
    answered = [row for row, texts in zip(rows, references, strict=True) if texts]
    others = [row for row, texts in zip(rows, references, strict=True) if not texts]
    if answered and others:
        values |= {f"has_answer_{name}": value for name, value in answer_metrics(*zip(*answered, strict=True)).items()}
        values["no_answer_exact_match"] = answer_metrics(*zip(*others, strict=True))["exact_match"]
    return values


def normalise_answer(text: str) -> str:
    """Return ``text`` in lower case, without ASCII punctuation and English articles, with single spaces.

    >>> normalise_answer("The  cat's an-imal.")
    'cats animal'
    """
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 where both are the same once normalised, else 0.

    >>> exact_match("the Cat!", "cat"), exact_match("cats", "cat")
    (1.0, 0.0)
    """
    return float(normalise_answer(prediction) == normalise_answer(reference))


def token_f1(prediction: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall of the normalised words, repeated words counted.

    Where either has no words left, it is 1 if neither has, else 0 (CoQA's and SQuAD 2.0's rule).

    >>> token_f1("a big big dog", "big dog")
    0.8
    """
    guessed, true = Counter(normalise_answer(prediction).split()), Counter(normalise_answer(reference).split())
    if not guessed or not true:
        return float(guessed == true)
    return 2 * (guessed & true).total() / (guessed.total() + true.total())


def _mean(
    score: Callable[[str, str], float],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    leave_one_out: bool,
) -> float:
    rows = [
        [score(text, reference) for reference in known] for text, known in zip(predictions, references, strict=True)
    ]
    best = _best_of_others if leave_one_out else max
    return float(sum(best(row) for row in rows) / len(rows))


def _best_of_others(scores: list[float]) -> float:
    """Return the mean over i of the largest score but the i-th; of one score, itself."""
    if len(scores) == 1:
        return scores[0]
    return sum(max(scores[:i] + scores[i + 1 :]) for i in range(len(scores))) / len(scores)
