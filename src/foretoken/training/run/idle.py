"""Idle options: given in the recipe, but without effect beside other options, on this model or on these data.

Each is logged once, as it is often a misunderstanding. Options that can never fit each other are errors instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from foretoken.attention import engines
from foretoken.backbones import BACKBONES
from foretoken.backbones.base import Backbone
from foretoken.methods import METHODS
from foretoken.metrics.table import METRICS
from foretoken.options import Values
from foretoken.processes import num_processes
from foretoken.training.model.adapter import MEMBERS
from foretoken.training.model.load import ATTENTION_DROPOUTS, count_parameters
from foretoken.training.recipe.recipe import Recipe, TrainingOptions
from foretoken.training.run.prepare import Prepared
from foretoken.tuner import first_trained_layer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run, of which some facts make options idle."""

    recipe: Recipe
    prepared: Prepared
    steps: int
    evaluations: int

    @property
    def training(self) -> TrainingOptions:
        """The options of training."""
        return self.recipe.training

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.prepared.model.config

    @property
    def backbone(self) -> Backbone | None:
        """The declaration of the model's family; None where full fine-tuning needs none."""
        return BACKBONES.get(self.config.model_type)

    @property
    def is_dense(self) -> bool:
        """Whether every token of the model sees every other one, without windows or blocks."""
        attentions = [stack.attention for stack in (self.backbone.stacks if self.backbone else ())]
        return not any(attention.has_global or attention.is_block_sparse for attention in attentions)

    @property
    def is_rotary(self) -> bool:
        """Whether the model rotates queries and keys by their positions."""
        return any(stack.attention.is_rotary for stack in (self.backbone.stacks if self.backbone else ()))


class Idle(NamedTuple):
    """An option, when it is idle although it was given, and why; ``{run}`` is formatted in."""

    key: str
    is_idle: Callable[[Run], bool]
    why: str


OPTIONS = (
    Idle("training.epochs", lambda run: run.training.max_steps is not None, "max_steps takes its place"),
    Idle("training.batch_size", lambda run: run.training.tokens_per_batch is not None, "tokens_per_batch is given"),
    Idle(
        "training.eval_batch_size",
        lambda run: run.training.eval_budget is not None and num_processes() == 1,
        "eval_tokens_per_batch takes its place, which is tokens_per_batch where it is left out",
    ),
    Idle(
        "training.warmup_ratio",
        lambda run: run.training.lr_scheduler == "constant",
        "lr_scheduler constant has no warmup; constant_with_warmup has",
    ),
    Idle(
        "training.warmup_steps",
        lambda run: run.training.lr_scheduler == "constant",
        "lr_scheduler constant has no warmup; constant_with_warmup has",
    ),
    Idle("training.warmup_ratio", lambda run: run.training.warmup_steps is not None, "warmup_steps takes its place"),
    Idle(
        "training.head_learning_rate",
        lambda run: count_parameters(run.prepared.model).head == 0,
        "no head is trained beside the method",
    ),
    Idle(
        "training.early_stopping_patience",
        lambda run: (run.training.early_stopping_patience or 0) >= run.evaluations - 1,
        "the run ends with its evaluation number {run.evaluations}, before so many could be without a better metric",
    ),
    Idle(
        "training.eval_every",
        lambda run: isinstance(run.training.eval_every, int) and run.training.eval_every > run.steps,
        "the run has {run.steps} steps, and is evaluated at its end",
    ),
    Idle(
        "training.activation_offload",
        lambda run: not torch.cuda.is_available(),
        "there is no GPU, all activations are in CPU memory",
    ),
    Idle(
        "training.attention_dropout",
        lambda run: run.training.attention_dropout != "model" and not _has_attention_dropout(run.config),
        "models of the family {run.config.model_type} have no number of their own for it",
    ),
    Idle(
        "training.attention_engine",
        lambda run: run.is_dense and run.training.attention_engine not in engines(),
        "models of the family {run.config.model_type} have no windows or blocks that it could compute",
    ),
    Idle(
        "training.packing",
        lambda run: run.backbone is None or not run.backbone.packs,
        "models of the family {run.config.model_type} always run with padding",
    ),
    Idle(
        "training.cache_states",
        lambda run: first_trained_layer(run.prepared.model) == 0,
        "no layer is below the first one that is trained; give the method `layers`, e.g. last-4",
    ),
    Idle("generation.length_penalty", lambda run: _of(run, "generation.num_beams") == 1, "there is one beam"),
    Idle("chunks.overlap", lambda run: _of(run, "chunks.at_most") == 1, "a document has one chunk"),
    Idle("chunks.pool", lambda run: _of(run, "chunks.at_most") == 1, "a document has one chunk"),
    Idle(
        "ece_bins",
        lambda run: run.prepared.problem.name not in METRICS["ece"].problems,
        "{run.prepared.problem.name} has no calibration error",
    ),
)


def idle_options(run: Run) -> list[str]:
    """Return one line per option that was given and has no effect."""
    own = [(item.key, item.why) for item in OPTIONS if _is_given(run, item.key) and item.is_idle(run)]
    return [
        f"{key} has no effect: {why.format(run=run)}"
        for key, why in (*own, *_of_method(run, run.recipe.method, "method"))
    ]


class SayIdle(TrainerCallback):
    """Logs the idle options when training begins: the number of steps is known then."""

    def __init__(self, recipe: Recipe, prepared: Prepared) -> None:
        self.recipe = recipe
        self.prepared = prepared

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Log a warning for each."""
        every = self.recipe.training.eval_every
        evaluations = state.num_train_epochs if every == "epoch" else -(-state.max_steps // int(every))
        for line in idle_options(Run(self.recipe, self.prepared, state.max_steps, evaluations)):
            log.warning("%s", line)


def _of_method(run: Run, method: Values, key: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a method, or of a stack's members, that their config says to need something else."""
    for index, member in enumerate(method.get(MEMBERS, ())):
        if isinstance(member, Mapping):
            yield from _of_method(run, member, f"{key}.{MEMBERS}[{index}]")
    config: Any = METHODS[method["name"]].config
    known = {item.name: item for item in fields(config)} if config is not None else {}
    for name, value in method.items():
        if name in known and value != _default(known[name]):
            if known[name].metadata.get("rotary") and not run.is_rotary:
                yield f"{key}.{name}", "models of the family {run.config.model_type} do not rotate by positions"
            for other, wanted in known[name].metadata.get("needs", {}).items():
                if method.get(other, _default(known[other])) not in wanted:
                    yield f"{key}.{name}", f"it is for {other}: {' or '.join(str(value).lower() for value in wanted)}"


def _is_given(run: Run, key: str) -> bool:
    """Tell whether an option has another value than its default, and was not left to foretoken."""
    if key in run.recipe.auto:
        return False
    group, _, name = key.rpartition(".")
    options = _of(run, group) if group else run.recipe
    if options is None:
        return False
    item = next(item for item in fields(options) if item.name == name)
    return bool(getattr(options, name) != _default(item))


def _of(run: Run, key: str) -> Any:
    value: Any = run.recipe
    for name in key.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _default(item: Field[object]) -> object:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _has_attention_dropout(config: object) -> bool:
    return any(hasattr(config, name) for name in ATTENTION_DROPOUTS)
