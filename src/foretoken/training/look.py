"""A look at recipe and data before a model is loaded: what is wrong with them is said at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foretoken.data.load import Loaded, load_data
from foretoken.data.options import DataOptions
from foretoken.data.problems import CLASSIFICATION, TOKEN_CLASSIFICATION
from foretoken.errors import ForetokenError, RecipeError, lines_of
from foretoken.options import Errors, build
from foretoken.training.recipe.reading import add_plain_errors
from foretoken.training.recipe.recipe import Recipe, build_recipe, read_values, source_of
from foretoken.training.run.folder import RECORD

if TYPE_CHECKING:
    from datasets import Dataset

_TEXTS = ("text", "text_pair", "words", "question", "context", "supports", "source")
_ABSENT: dict[str, Any] = {"model": "", "method": {"name": ""}}  # a look at data alone needs neither


@dataclass(frozen=True)
class Plan:
    """A recipe as it stands, with what can be said against it without PyTorch.

    Attributes:
        source: what its errors call it.
        values: of all its keys.
        recipe: it, if nothing can be said.
        data: its data, if nothing can be said against those.
        errors: one line for each.
    """

    source: str
    values: Mapping[str, Any]
    recipe: Recipe | None
    data: DataOptions | None
    errors: Sequence[str]

    @classmethod
    def read(cls, path: str | None, overrides: Sequence[str], *, may_be_data: bool = False) -> Plan:
        """Read a recipe file and the flags, which may name the data alone if ``may_be_data``."""
        values, errors = read_values(path, overrides), Errors()
        absent = _ABSENT if may_be_data and not values.keys() & _ABSENT.keys() else {}
        recipe = build(Recipe, {**absent, **values}, errors)
        add_plain_errors(values, errors)
        data = values.get("data")
        alone = build(DataOptions, data, []) if isinstance(data, Mapping) else None
        return cls(source_of(path), values, None if errors else recipe, alone, errors)

    def load_data(self) -> Loaded | None:
        """Return the data, of folds those of the first; None where the recipe does not say which.

        Raises:
            RecipeError: recipe and data have several errors.
            ForetokenError: the data have one.
        """
        if self.data is None:
            return None
        every = self.data.folds is not None and self.data.fold is None
        try:
            return load_data(replace(self.data, fold=0) if every else self.data)
        except ForetokenError as error:
            if not self.errors:
                raise
            raise RecipeError.of(self.source, [*self.errors, *lines_of(error)]) from None


def data_of(path: str | None, overrides: Sequence[str], *, anew: bool) -> Loaded | None:
    """Return the data that a run of a recipe begins with; None where they are not known, or the run has begun already.

    Raises:
        ForetokenError: recipe and data cannot be used; what is wrong with both is in one message.
    """
    plan = Plan.read(path, overrides)
    named = plan.recipe if plan.recipe is not None and "name" in plan.recipe.method else None
    if named is not None and not anew and (named.run_folder / RECORD).exists():
        return None
    loaded = plan.load_data()
    is_of_all_folds = plan.data is not None and plan.data.folds is not None and plan.data.fold is None
    return None if is_of_all_folds else loaded


@dataclass(frozen=True)
class Lengths:
    """How long the documents of a split are.

    Attributes:
        median: of them.
        long: what nine of ten are not above.
        longest: of all.
        cut: how many lose their end.
        unread: about which share of all tokens is in those ends.
    """

    median: int
    long: int
    longest: int
    cut: int = 0
    unread: float = 0.0

    @classmethod
    def of(cls, quantiles: Sequence[int], longest: int, *, cut: int = 0, most: int | None = None) -> Lengths:
        """Return what evenly spaced quantiles, from 0 to 100 %, say."""
        last = len(quantiles) - 1
        beyond = sum(max(0, length - most) for length in quantiles) if most and cut else 0
        return cls(quantiles[last // 2], quantiles[last * 9 // 10], longest, cut, beyond / max(1, sum(quantiles)))


def lengths_in_words(data: Loaded) -> dict[str, Lengths]:
    """Return how many words the documents of every split have."""
    return {name: _in_words(split) for name, split in data.splits.items()}


def _in_words(split: Dataset) -> Lengths:
    texts = [name for name in _TEXTS if name in split.column_names]
    lengths = sorted(sum(map(_words, values)) for values in zip(*(split[name] for name in texts), strict=True))
    return Lengths.of(lengths, lengths[-1])


def _words(value: str | Sequence[str] | None) -> int:
    return len(value.split()) if isinstance(value, str) else sum(map(_words, value or ()))


def lengths_in_tokens(plan: Plan, data: Loaded) -> tuple[dict[str, Lengths], int]:
    """Return how many tokens the documents of every split have, and how many the recipe's model reads.

    Raises:
        ForetokenError: the recipe does not fit the data or the model, or the tokenizer cannot be loaded.
    """
    from transformers import AutoConfig

    from foretoken.lengthening import resolve_source
    from foretoken.training.model.load import load_errors, load_tokenizer
    from foretoken.training.run.prepare import encoded, problem_of
    from foretoken.training.tokens.encode import EncodeSettings, token_rules

    recipe = build_recipe(plan.values, plan.source)
    problem, source = problem_of(recipe, data), resolve_source(recipe.model)
    with load_errors(source, "config"):
        config = AutoConfig.from_pretrained(source)
    tokenizer = load_tokenizer(source, config)
    longest = recipe.lengthen.max_length if recipe.lengthen else None
    most = longest or problem.max_length(recipe.max_length, config, tokenizer)
    settings = EncodeSettings(tokenizer, most, token_rules(config), recipe.chunks)
    problem = problem.for_model(config, tokenizer)
    counts = {name: encoded(problem, split, settings)[1] for name, split in data.splits.items()}
    return {
        name: Lengths.of(found.length_quantiles, found.longest, cut=found.truncated, most=most)
        for name, found in counts.items()
    }, most


def counts_of(data: Loaded) -> dict[str, Counter[str]]:
    """Return how often every class, or type of entity, occurs in each split; nothing for other problems."""
    if data.problem == CLASSIFICATION:
        return {name: Counter(data.labels[number] for number in split["label"]) for name, split in data.splits.items()}
    if data.problem != TOKEN_CLASSIFICATION:
        return {}
    begin = {number: tag[2:] for number, tag in enumerate(data.labels) if tag.startswith("B-")}
    return {
        name: Counter(begin[number] for tags in split["labels"] for number in tags if number in begin)
        for name, split in data.splits.items()
    }
