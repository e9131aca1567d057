"""Trained models, loaded to predict: an adapter, a run folder or a whole model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from peft import PeftConfig, PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foretoken.data.documents import is_readable
from foretoken.data.plain_table import PlainTable, Table
from foretoken.data.problems import CLASSIFICATION
from foretoken.data.readers.rows import text_value
from foretoken.errors import AdapterError, DataError, cut, quoted
from foretoken.inference.base_model import adapter_errors, base_model_of, check_base, read_adapter_config
from foretoken.inference.int8 import hold_in_int8
from foretoken.inference.saved_weights import adapter_file, check_adapter, check_model, model_files
from foretoken.inference.shared_base import SharedBase
from foretoken.machine.precision import chosen_precision
from foretoken.methods.base import ForetokenConfig
from foretoken.metrics.decision import Decision
from foretoken.metrics.scaling import Scaling
from foretoken.quiet import quiet_transformers
from foretoken.saved_files import refuse_pickles
from foretoken.training.baseline.tfidf import VOCABULARY, Tfidf, texts_of
from foretoken.training.model.load import head_options, load_tokenizer, load_whole, load_with_new_head
from foretoken.training.model.precision import hold_frozen
from foretoken.training.options import ChunkOptions
from foretoken.training.problems import Problem, make_problem
from foretoken.training.problems.base import Inputs
from foretoken.training.run.card import CARD, Card, read_card
from foretoken.training.run.fingerprint import of_model
from foretoken.training.saved_folder import EXPECTED, adapter_folder
from foretoken.training.tokens.batches import OFFSET, by_length
from foretoken.training.tokens.batches import cut as cut_by_length
from foretoken.training.tokens.encode import EncodeSettings, Truncation, token_rules
from foretoken.training.tokens.new_tokens import has_trained_rows, match_vocabulary
from foretoken.training.words import load_words
from foretoken.tuner.limits import check_lora
from foretoken.tuner.speed import use_fast_attention

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)
HEADLESS = "FEATURE_EXTRACTION"  # peft's task type of a model without a head


@dataclass(frozen=True)
class Predictor:
    """A model ready to predict, with the facts about its inputs and outputs.

    Attributes:
        columns: names of the columns in the training data, by the recipe's keys.
        scaling: scaling of the probabilities, fitted on the validation documents of training; None without one.
        unscaled_decision: the decision for probabilities without the scaling.
        words: TF-IDF whose logits are added to the model's; None where it was trained without.
    """

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    problem: Problem
    max_length: int
    columns: Mapping[str, Any] = field(default_factory=dict)
    chunks: ChunkOptions | None = None
    max_tokens: int | None = None
    scaling: Scaling | None = None
    unscaled_decision: Decision | None = None
    precision: str = "fp32"
    words: Tfidf | None = None

    @property
    def source(self) -> str:
        """Where the pretrained model was loaded from."""
        return str(self.model.config.name_or_path)

    @property
    def labels(self) -> list[str]:
        """The classes or tags, in the order of the model's outputs."""
        return list(self.problem.labels)

    @property
    def settings(self) -> EncodeSettings:
        """How documents become tokens."""
        config: Any = self.model.config
        return EncodeSettings(self.tokenizer, self.max_length, token_rules(config), self.chunks, self.max_tokens)


def load_for_inference(
    folder: str | Path,
    *,
    precision: str = "fp32",
    base: SharedBase | None = None,
    base_model: str | None = None,
    accept_changed: bool = False,
) -> Predictor:
    """Load an adapter folder, a run folder or a model folder.

    Args:
        folder: path, or name on the hub.
        precision: ``fp32``; ``bf16``: computed in bfloat16, in which frozen weights are held as well; ``int8``: the
            linear maps of the layers in 8 bits, the rest as in fp32; ``auto``: bf16 where that is faster, else fp32.
        base: a pretrained model that several adapters share, in place of the one that the folder names. Its precision
            is used.
        base_model: the pretrained model of an adapter, in place of the one that its folder names.
        accept_changed: load an adapter though its pretrained model is not the one that it was trained on.

    Raises:
        AdapterError: the folder holds none of them, or a file in it is missing, corrupt or of another model.
        BackboneError: the adapter's base model cannot be loaded.
        ConfigError: int8 cannot be computed here.
    """
    predictor = _load(Path(folder), base, base_model, accept_changed=accept_changed)
    if base is not None:
        base.lower(predictor.model)
        return replace(predictor, precision=base.precision)
    precision = chosen_precision(precision, predictor.model.config, predictor.model.device.type)
    if precision == "bf16":
        hold_frozen(predictor.model)
    if precision == "int8":
        log.info("precision: %s weights are held in int8", f"{hold_in_int8(predictor.model):,}")
    return replace(predictor, precision=precision)


def refuse_unusable_texts(texts: Sequence[str]) -> None:
    """Raise a DataError if there is no text, or one is empty, only white space, or no valid UTF-8."""
    if isinstance(texts, str) or not len(texts):
        raise DataError(f"texts: got {quoted(texts)}, expected a list of at least one text")
    for number, text in enumerate(texts, 1):
        if not is_readable(text_value(f"document {number} of {len(texts)}", text, "text")):
            raise DataError(f"document {number} of {len(texts)} is empty; expected some text")


def rows_without_tokens(predictor: Predictor, table: datasets.Dataset | PlainTable) -> dict[int, str]:
    """Return the rows that cannot become tokens, and why; they are few, so halves of the table are searched."""
    waiting, errors = [range(len(table["id"]))], dict[int, str]()
    while waiting:
        rows = waiting.pop()
        try:
            predictor.problem.encode(table.select(rows), predictor.settings)
        except DataError as error:
            half = len(rows) // 2
            if half:
                waiting += [rows[half:], rows[:half]]
            else:
                errors[rows[0]] = str(error)
    return errors


def predict_rows(
    predictor: Predictor,
    table: Table,
    *,
    batch_size: int = 16,
    tokens_per_batch: int | None = None,
    scaled: bool = True,
    advance: Callable[[int], object] = lambda _: None,
) -> tuple[Any, Truncation, list[int]]:
    """Return the predictions for every row of a table, in its order, what was truncated, and the rows' lengths.

    Args:
        predictor: the model.
        table: rows with the columns of the problem (see :func:`foretoken.data.schemas.table`); no labels are needed.
        batch_size: documents per forward pass.
        tokens_per_batch: tokens per forward pass, padding included, in place of ``batch_size``.
        scaled: apply the predictor's scaling, if it has one.
        advance: function that is called with the number of documents of each batch.
    """
    columns, truncation = predictor.problem.encode(table, predictor.settings)
    columns.pop("labels", None)
    if predictor.words is not None:
        columns[OFFSET] = predictor.words.logits(texts_of(table)).tolist()
    lengths = columns["length"]
    predicted: list[Any] = [None] * len(lengths)
    for rows in _batches(lengths, batch_size, tokens_per_batch):
        batch = [{name: values[row] for name, values in columns.items()} for row in rows]
        for row, output in zip(rows, predict_batch(predictor, batch), strict=True):
            predicted[row] = output
        advance(len(rows))
    outputs = np.stack(predicted) if predictor.problem.has_probabilities else predicted
    if scaled and predictor.scaling is not None:
        outputs = predictor.scaling.apply(outputs)
    return outputs, truncation, lengths


@torch.inference_mode()
def predict_batch(predictor: Predictor, rows: Sequence[Inputs]) -> Sequence[Any]:
    """Return the outputs for one batch of encoded rows.

    Raises:
        AdapterError: they are not finite, because weights are damaged.
    """
    batch = predictor.problem.collator(predictor.tokenizer, predictor.model)(rows)
    device = next(predictor.model.parameters()).device
    inputs = {name: value.to(device) for name, value in batch.items()}
    with torch.autocast(device.type, torch.bfloat16, enabled=predictor.precision == "bf16"):
        logits = predictor.problem.predict(predictor.model, inputs)
    if not logits.isfinite().all():
        raise AdapterError("the model's outputs are not finite numbers: its weights are damaged, train it again")
    return predictor.problem.decode(logits.float().cpu().numpy(), None)[0]


def _batches(lengths: Sequence[int], batch_size: int, tokens_per_batch: int | None) -> list[list[int]]:
    """Return the documents in batches, the longest first, so that too little memory shows at once."""
    order = by_length(lengths)
    if tokens_per_batch is not None:
        return cut_by_length(order, lengths, tokens_per_batch)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _load(folder: Path, base: SharedBase | None, base_model: str | None, *, accept_changed: bool) -> Predictor:
    saved = adapter_folder(folder)
    for item in saved.iterdir():
        if item.suffix in (".json", ".safetensors") and not item.is_file():
            raise AdapterError(f"{item} is not a file; copy or save {saved.name} again")
    if (saved / "adapter_config.json").is_file():
        return _load_adapter(saved, base, base_model, accept_changed=accept_changed)
    if base is not None or base_model is not None:
        why = "" if base_model is None else ", which --base-model is for"
        raise AdapterError(f"{folder} {_contents(saved)}; expected an adapter, with adapter_config.json{why}")
    if (saved / "config.json").is_file():
        return _load_model(saved)
    if (saved / VOCABULARY).is_file():
        raise AdapterError(f"{folder} holds a tf-idf baseline, which has no pretrained model; predict with it alone")
    refuse_pickles(saved)
    raise AdapterError(f"{folder} {_contents(saved)}; {EXPECTED}")


def _load_adapter(
    folder: Path, shared: SharedBase | None, base_model: str | None, *, accept_changed: bool
) -> Predictor:
    weights = adapter_file(folder)
    card, config = read_card(folder), read_adapter_config(folder)
    source = shared.source if shared else base_model_of(folder, base_model)
    problem = card.make_problem()
    if problem is None and config.task_type == HEADLESS:
        raise AdapterError(f"{folder} makes vectors of texts, and predicts nothing; use foretoken.embed")
    head = card.recipe.head or head_options(getattr(config, "head", None))
    with_new_head = shared.with_new_head if shared else partial(load_with_new_head, source)
    base, random = with_new_head(problem, head=head)
    tokenizer = None if shared or _has_tokenizer(folder) else load_tokenizer(source, base.config)
    if shared is None and card.fingerprint:
        check_base(folder, card, of_model(base, tokenizer), source=source, accept_changed=accept_changed)
    _check_task(folder, config, "SEQ_CLS" if problem is None else problem.task_type_of(base.config))
    if has_trained_rows(config) and shared:
        raise AdapterError(f"{folder}: it trains embeddings of new tokens, which adapters of a shared model cannot")
    if has_trained_rows(config) and _has_tokenizer(folder):
        match_vocabulary(base, load_tokenizer(str(folder)))
    with warnings.catch_warnings(), adapter_errors(folder):
        warnings.simplefilter("ignore")  # what peft warns of, missing tensors above all, is refused below
        if not isinstance(config, ForetokenConfig):
            check_lora(config, base)
        model = PeftModel.from_pretrained(base, str(folder))
        check_adapter(model, weights, random=random)
    if shared is not None:
        return _ready(folder, model, shared.tokenizer, card, problem)
    return _ready(folder, model, tokenizer or load_tokenizer(str(folder), base.config), card, problem)


def _load_model(folder: Path) -> Predictor:
    files = model_files(folder)
    card = read_card(folder)
    problem = card.make_problem()
    with quiet_transformers(), adapter_errors(folder):
        model, info = load_whole(folder, problem)
        _check_whole(info, card)
        check_model(model, files)
    return _ready(folder, model, load_tokenizer(str(folder), model.config), card, problem)


def _check_whole(info: Mapping[str, Iterable[str]], card: Card) -> None:
    """Refuse a model with random tensors, or with tensors in its file that its config does not have."""
    needed = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))  # which no head here reads
    if needed:
        missing = cut(", ".join(needed[:3]), 200)
        raise AdapterError(f"the model has no trained head ({missing}); train one, or give an adapter folder")
    if info["unexpected_keys"] and card.recipe.model:  # foretoken saved it; files of others may hold more heads
        beyond = cut(", ".join(sorted(info["unexpected_keys"])[:3]), 200)
        raise AdapterError(f"the model's file holds more than its config.json says ({beyond}); copy both again")


def _check_task(folder: Path, config: PeftConfig, expected: str) -> None:
    """Refuse an adapter whose config and card name different problems."""
    if config.task_type is not None and config.task_type != expected:
        raise AdapterError(
            f"{folder}: task_type is {quoted(str(config.task_type))} in adapter_config.json, "
            f"and what is to be predicted takes {expected}; the two belong to different adapters"
        )


def _check_head(problem: Problem, labels: list[str]) -> None:
    """Refuse a card whose labels differ from those of the model's config."""
    if len(labels) != problem.head_options.get("num_labels", len(labels)) or problem.labels not in ((), tuple(labels)):
        expected = f"{problem.name} with {quoted(list(problem.labels))}"
        raise AdapterError(f"{CARD} says {expected}, and config.json has the labels {quoted(labels)}; copy both again")


def _ready(
    folder: Path,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    card: Card,
    problem: Problem | None,
) -> Predictor:
    use_fast_attention(model)  # LoRA and whole models do not enable it themselves
    config: Any = model.config
    labels = [str(config.id2label[index]) for index in range(config.num_labels)]
    problem = problem or make_problem(CLASSIFICATION, labels)
    _check_head(problem, labels)
    max_length = problem.max_length(card.max_length, config, tokenizer)
    config.pad_token_id = tokenizer.pad_token_id
    nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    return Predictor(
        model.eval(),
        tokenizer,
        problem.for_model(config, tokenizer),
        max_length,
        columns=card.columns,
        chunks=card.recipe.chunks,
        max_tokens=card.recipe.max_tokens,
        scaling=card.scaling,
        unscaled_decision=card.unscaled_decision,
        words=load_words(folder, problem) if card.recipe.words else None,
    )


def _contents(folder: Path) -> str:
    names = sorted(item.name for item in folder.iterdir())
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"holds {shown}" if names else "is empty"


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()
