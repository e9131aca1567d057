"""What a recipe may say of the baseline: ``method: tf-idf``."""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.options import Errors, Values, build, option

TF_IDF = "tf-idf"
SUMMARY = "a linear model of weighted words and pairs of words, without the pretrained model"
PAPER = "Sparck Jones 1972, Joachims 1998"


@dataclass(frozen=True)
class TfidfOptions:
    """How documents become numbers, and how much the weights are held back."""

    ngrams: int = option("words in a row that count as one term, at most", 2, at_least=1, at_most=10)
    min_df: int = option("documents that a term has to be in", 2, at_least=1, at_most=1_000_000)
    C: float = option("strength of the data against that of the penalty on the weights", 1.0, above=0, at_most=1e6)


def method_name(recipe: Values) -> str:
    """Return what tables call the method of a recipe, as nested data: with what is beside it.

    >>> method_name({"method": {"name": "lora"}, "words": True})
    'lora + words'
    """
    name = str((recipe.get("method") or {}).get("name") or "")
    return f"{name} + words" if name and recipe.get("words") else name


def is_baseline(method: Values) -> bool:
    """Tell whether a recipe's method group names the baseline."""
    return method.get("name") == TF_IDF


def tfidf_options(method: Values, errors: Errors) -> TfidfOptions | None:
    """Return the options of a recipe's method group; one line per problem goes to errors, and there are none."""
    return build(TfidfOptions, {name: value for name, value in method.items() if name != "name"}, errors, "method.")
