"""The words beside an exported model: TF-IDF as JSON and numpy arrays, and the lines of Python that read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foretoken.files import os_errors_as_save_error, write_json
from foretoken.training.baseline.tfidf import Tfidf
from foretoken.training.problems import Problem
from foretoken.training.problems.regression import Regression

TERMS, ARRAYS = "words.json", "words.npz"
OFFSET_CODE = r"""
words, arrays = json.loads(Path("words.json").read_text(encoding="utf-8")), dict(np.load("words.npz"))
places = {term: place for place, term in enumerate(words["terms"])}

def offset(text):  # what TF-IDF of the whole text adds to the model's outputs
    read, sizes = re.findall(r"(?u)\b\w\w+\b", text.lower()), range(1, words["ngrams"] + 1)
    counts = Counter(" ".join(read[at : at + size]) for size in sizes for at in range(len(read) - size + 1))
    known = {places[term]: 1 + np.log(count) for term, count in counts.items() if term in places}
    values = np.array(list(known.values())) * arrays["idf"][list(known)]
    length = np.sqrt((values**2).sum()) or 1.0
    return arrays["weight"][:, list(known)] @ values / length + arrays["bias"]
"""


def write_words(words: Tfidf, problem: Problem, folder: Path) -> None:
    """Write the two files; of numbers, the weights are in the units of the data, as the graph's outputs are."""
    scale = np.array(problem.targets.std)[:, None] if isinstance(problem, Regression) else np.ones((1, 1))
    write_json(folder / TERMS, {"terms": list(words.terms), "ngrams": words.options.ngrams})
    weight, bias = words.slope * scale * words.weight, words.slope * scale[:, 0] * words.bias
    with os_errors_as_save_error(folder / ARRAYS):
        np.savez(folder / ARRAYS, idf=words.idf, weight=weight, bias=bias)
