"""The words beside an exported model: TF-IDF as JSON and numpy arrays, which `read.py` adds to the logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foretoken.files import os_errors_as_save_error, write_json
from foretoken.training.baseline.tfidf import Tfidf

WORDS = "words"


def write_words(words: Tfidf, stem: Path) -> None:
    """Write the two files, ``stem`` with .json and .npz."""
    write_json(Path(f"{stem}.json"), {"terms": list(words.terms), "ngrams": words.options.ngrams})
    weight, bias = words.slope * words.weight, words.slope * words.bias
    with os_errors_as_save_error(file := Path(f"{stem}.npz")):
        np.savez(file, idf=words.idf, weight=weight, bias=bias)
