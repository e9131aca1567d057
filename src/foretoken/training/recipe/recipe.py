"""The recipe: everything a run depends on, as frozen dataclasses with a help text per field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from foretoken.data.options import DataOptions
from foretoken.data.problems import PROBLEMS, Answer, ProblemData, Rows
from foretoken.errors import RecipeError
from foretoken.limits import LONGEST_DOCUMENT, MOST_BINS
from foretoken.options import Errors, Values, build, flatten, is_number, option, texts_of, to_dict
from foretoken.outputs import check_name, plain_name
from foretoken.training.baseline.options import is_baseline, tfidf_options
from foretoken.training.options import (
    AUTO,
    PRECISION,
    ChunkOptions,
    DecisionOptions,
    GenerationOptions,
    HeadOptions,
    LengthenOptions,
    QuestionOptions,
    TrainingOptions,
)
from foretoken.training.recipe.reading import add_plain_errors, apply_overrides, parse_overrides, read_yaml

if TYPE_CHECKING:
    from peft import PeftConfig


@dataclass(frozen=True)
class Recipe:
    """One run: a model, data, a method and how it is trained."""

    model: str = option("folder or hub name of a pretrained model, or `minilm` (the demo weights)")
    data: DataOptions = option("the documents and their labels")
    method: Values = option("`name` (see `foretoken methods`) and the options of its config")
    start_from: str | None = option(
        "run, adapter or model folder of the same method and model whose weights training starts from, also its head's",
        None,
    )
    lengthen: LengthenOptions | None = option("lengthen the model first", None)
    max_length: int | None = option(
        "tokens that the model reads at once; default: its maximum", None, at_least=2, at_most=LONGEST_DOCUMENT
    )
    max_tokens: int | None = option(
        "tokens of a document at most, what is beyond them is cut off; default: all are read",
        None,
        at_least=2,
        at_most=LONGEST_DOCUMENT,
    )
    chunks: ChunkOptions | None = option("how documents beyond `max_length` are read", None)
    head: Literal["auto"] | HeadOptions | None = option(
        "the head of classification and regression on encoders; `auto`: one that reads mean, maximum and standard "
        "deviation of all tokens, of unit length where there are fewer than 16 documents a class (multiple choice: "
        "transformers' own, or the mean for sentence encoders); `null`: always transformers' own",
        AUTO,
    )
    words: bool = option(
        "add to the logits those of TF-IDF of the whole text, weighed on training documents that it was not fitted on; "
        "classification, several labels and regression",
        False,
    )
    generation: GenerationOptions | None = option("how texts are generated; for data that have such texts", None)
    question_answering: QuestionOptions | None = option(
        "how answers are looked for; for data with questions about contexts", None
    )
    calibration: Literal["temperature", "vector", "variance"] | None = option(
        "scale the probabilities (regression: `variance`, the standard deviation of the errors), fitted on validation; "
        "`predict` applies it",
        None,
    )
    decision: Literal["auto", "argmax", "f1"] | DecisionOptions = option(
        "what is answered: the likeliest class (labels of 0.5), what raises F1 on validation, or what costs least; "
        "`auto`: f1 for several labels, else argmax",
        AUTO,
    )
    training: TrainingOptions = option("how the trained parameters are found", factory=TrainingOptions)
    output: str = option("folder that holds the runs", "runs")
    name: str | None = option("name of the run's folder; default: <data>-<method>-seed<k>[-fold<k>]", None)
    protocol: str | None = option(
        "what readers of a report must know of how its scores came about, e.g. in what they differ from a paper's", None
    )
    save_errors: bool = option(
        "keep how the texts of the 20 surest errors of each split begin in errors.json, for the report; `false` "
        "for confidential documents",
        True,
    )
    baselines: bool = option(
        "measure the commonest answer and TF-IDF on the same splits too, and say whether training was worth it", True
    )
    ece_bins: int = option("bins of the expected calibration error", 15, at_least=1, at_most=MOST_BINS)
    auto: list[str] = option("keys that were `auto`, whatever they hold by now", factory=list, internal=True)
    _is_checked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a name that would lead out of the folder of the runs."""
        if self.name is not None:
            check_name(self.name, what="name")

    @property
    def run_folder(self) -> Path:
        """Folder of this run, right below the one that holds the runs."""
        return Path(self.output) / (self.name or self.default_name)

    @property
    def default_name(self) -> str:
        """Name of a run that was given none: the same recipe always gets the same one."""
        fold = "" if self.data.fold is None else f"-fold{self.data.fold}"
        start = "" if self.start_from is None else f"-from-{Path(self.start_from).resolve().name}"
        words = "-words" if self.words else ""
        return plain_name(f"{_data_name(self.data)}-{self.method['name']}{words}-seed{self.training.seed}{fold}{start}")


def decision_rule(recipe: Recipe, problem: str) -> DecisionOptions | None:
    """Return what the answers of a problem are chosen by; None for the likeliest class, or labels of 0.5."""
    if isinstance(recipe.decision, DecisionOptions):
        return recipe.decision
    if recipe.decision == "argmax" or (recipe.decision == AUTO and PROBLEMS[problem].answer is not Answer.LABELS):
        return None
    return DecisionOptions(average="macro" if recipe.training.metric == "f1_macro" else "micro")


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, apply ``--key value`` overrides, and check it all; without a file, they are all there is."""
    return build_recipe(read_values(path, overrides), source=source_of(path))


def read_values(path: str | Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a recipe file with ``--key value`` overrides as plain values; without a file, they are all there is."""
    chosen = parse_overrides(overrides, texts_of(Recipe))
    return with_method_group(apply_overrides({} if path is None else read_yaml(Path(path)), chosen))


def source_of(path: str | Path | None) -> str:
    """Return what the errors of a recipe call it."""
    return "recipe of the flags" if path is None else str(path)


def build_recipe(values: Values, source: str = "recipe") -> Recipe:
    """Build a recipe from nested data; raise one RecipeError that lists every problem."""
    from foretoken.training.problems.metrics import default_metric  # imports torch, as do the checks of names

    errors: Errors = []
    values = with_method_group(values)
    recipe = build(Recipe, values, errors)
    config = _check_names(values, errors)
    add_plain_errors(values, errors)
    if errors or recipe is None:
        raise RecipeError.of(source, errors)
    metric = default_metric(recipe.data) if recipe.training.metric == AUTO else recipe.training.metric
    if recipe.head == AUTO and is_baseline(recipe.method):
        recipe = replace(recipe, head=None)  # it has none
    if recipe.training.precision == AUTO and is_baseline(recipe.method):
        recipe = with_training(recipe, precision="fp32")  # there is nothing to choose
    if recipe.chunks is None and not is_baseline(recipe.method) and _problem(recipe).rows is Rows.TEXTS:
        recipe = replace(recipe, chunks=ChunkOptions())
    rates = _auto_rates(recipe, config)
    training = replace(recipe.training, metric=metric, **rates)
    others = [*(["head"] if recipe.head == AUTO else []), *([PRECISION] if training.precision == AUTO else [])]
    auto = sorted({*recipe.auto, *(f"training.{name}" for name in rates), *others})
    found = replace(recipe, training=training, name=recipe.name or recipe.default_name, auto=auto)
    object.__setattr__(found, "_is_checked", True)  # a changed copy, as of `replace`, has to be checked again
    return found


def checked(recipe: Recipe) -> Recipe:
    """Return a recipe that :func:`build_recipe` made as it is; another one with its defaults, validated."""
    return recipe if recipe._is_checked else build_recipe(to_dict(recipe))


def with_auto_rate(recipe: Recipe) -> Recipe:
    """Return a recipe that leaves its learning rate to foretoken, whatever it was."""
    return build_recipe(apply_overrides(to_dict(recipe), {"training.learning_rate": AUTO}))


def as_begun(recipe: Recipe, values: Values) -> Recipe:
    """Return a recipe with the learning rates, precision and head of another one, as recorded, where they are `auto`.

    What foretoken chooses may differ between its versions; a run goes on with what it was begun with.
    """
    known = flatten(values)
    names = [key.removeprefix("training.") for key in recipe.auto if is_number(known.get(key))]
    chosen = {name: known[f"training.{name}"] for name in names}
    if PRECISION in recipe.auto:
        chosen["precision"] = known.get(PRECISION, "fp32")
    training = replace(recipe.training, **chosen)
    head = values.get("head") if "head" in recipe.auto else recipe.head  # records from before there was a choice: none
    return replace(recipe, training=training, head=HeadOptions(**head) if isinstance(head, Mapping) else head)


def with_training(recipe: Recipe, **values: object) -> Recipe:
    """Return a recipe with other values of some of its training options, such as what `auto` came to."""
    return replace(recipe, training=replace(recipe.training, **values))  # type: ignore[arg-type]


def with_method_group(values: Values) -> dict[str, Any]:
    """Accept ``method: lora`` for ``method: {name: lora}``."""
    method = values.get("method")
    return dict(values) | ({"method": {"name": method}} if isinstance(method, str) else {})


def _problem(recipe: Recipe) -> ProblemData:
    from foretoken.data.tasks.table import problem_name

    return PROBLEMS[problem_name(recipe.data)]


def _auto_rates(recipe: Recipe, config: PeftConfig | None) -> dict[str, Any]:
    """Return the learning rates that the recipe leaves to its method."""
    from foretoken.methods.rates import default_rates

    if is_baseline(recipe.method):
        return {}
    answer = _problem(recipe).answer
    rate, head_rate = default_rates(config, tagging=answer is Answer.TAGS)
    if answer is Answer.TEXT and config is None:
        head_rate = None  # a language model's head is pretrained like all of it
    given, given_head = recipe.training.learning_rate, recipe.training.head_learning_rate
    found = {"learning_rate": (given, rate), "head_learning_rate": (given_head, head_rate)}
    return {name: own for name, (value, own) in found.items() if value == AUTO}


def _check_names(values: Values, errors: Errors) -> PeftConfig | None:
    """Check the task and its options, and the names of metric and attention engine; return the method's config."""
    from foretoken.data.tasks.table import task_errors
    from foretoken.training.model.adapter import read_config
    from foretoken.training.model.engine import engine_errors
    from foretoken.training.problems.metrics import metric_errors

    config = None
    data, method, training = values.get("data"), values.get("method"), values.get("training")
    if isinstance(data, Mapping):
        errors += [f"data: {error}" for error in task_errors(data)]
    if isinstance(method, Mapping):
        if is_baseline(method):
            tfidf_options(method, errors)
        else:
            config = read_config(method, errors)
        if is_baseline(method) and values.get("start_from") is not None:
            errors.append("start_from: method tf-idf is fitted anew; leave it out")
        if is_baseline(method) and values.get("words") is True:
            errors.append("words: method tf-idf is made of them; leave it out")
    if isinstance(training, Mapping):
        metric, engine = training.get("metric"), training.get("attention_engine")
        errors += metric_errors(metric) if isinstance(metric, str) and metric != AUTO else []
        errors += engine_errors(engine) if isinstance(engine, str) else []
    return config


def _data_name(data: DataOptions) -> str:
    source = data.task or data.path or data.train or "data"
    return Path(source.removeprefix("hub:")).stem
