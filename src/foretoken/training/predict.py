"""Inference with what training wrote: an adapter, a run folder or a whole model, on plain texts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftConfig, PeftModel
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foretoken.errors import AdapterError, DataError, ForetokenError
from foretoken.lengthening import resolve_source
from foretoken.training.budget import by_length, cut
from foretoken.training.measure import probabilities_of
from foretoken.training.model import load_classifier, load_tokenizer, load_weights, quiet_transformers
from foretoken.training.precision import hold_frozen
from foretoken.training.progress import progress_bar
from foretoken.training.record import FILE as RUN_FILE
from foretoken.training.record import read_record
from foretoken.training.results import CARD
from foretoken.training.tokenise import PaddingCollator, Truncation, chosen_max_length, encode, token_rules
from foretoken.tuner import use_fast_attention  # registers our methods with peft on the way

EXPECTED = "expected a folder with adapter_config.json (adapter), run.json (run) or config.json (model)"


@dataclass(frozen=True)
class Classifier:
    """A model ready to predict, with what it must know about its inputs and outputs."""

    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    labels: list[str]
    max_length: int
    text_column: str = "text"  # what the columns were called in the training data
    label_column: str = "label"
    precision: str = "fp32"


def load_for_inference(folder: str | Path, *, precision: str = "fp32") -> Classifier:
    """Load an adapter folder, a run folder or a model folder.

    Args:
        folder: where it is.
        precision: ``fp32``; or ``bf16``: computed in bfloat16, in which frozen weights are held as well.

    Raises:
        AdapterError: the folder holds none of them, or a file in it is missing, corrupt or of another model.
        BackboneError: the adapter's base model cannot be loaded.
    """
    classifier = _load(Path(folder))
    if precision == "bf16":
        hold_frozen(classifier.model)
    return replace(classifier, precision=precision)


def _load(folder: Path) -> Classifier:
    place = adapter_folder(folder)
    if (place / "adapter_config.json").is_file():
        return _load_adapter(place)
    if (place / "config.json").is_file():
        return _load_model(place)
    raise AdapterError(f"{folder} {_contents(place)}; {EXPECTED}")


def predict_texts(
    classifier: Classifier, texts: Sequence[str], *, batch_size: int = 16, tokens_per_batch: int | None = None
) -> tuple[np.ndarray, Truncation]:
    """Return the probabilities [B, C] of every text, in their order, and what truncation cost.

    Args:
        classifier: what predicts.
        texts: the documents, in any order; batches are made of documents of like length.
        batch_size: documents per forward pass.
        tokens_per_batch: tokens per forward pass, padding included, in place of ``batch_size``.

    Raises:
        DataError: a text is empty.
    """
    empty = next((index for index, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise DataError(f"document {empty + 1} of {len(texts)} is empty; expected some text")
    config: Any = classifier.model.config
    encoded = encode(texts, classifier.tokenizer, max_length=classifier.max_length, rules=token_rules(config))
    batches = _batches([len(ids) for ids in encoded.input_ids], batch_size, tokens_per_batch)
    probabilities = np.empty((len(texts), len(classifier.labels)))
    with progress_bar("predicting") as bar:
        task = bar.add_task("", total=len(texts), note="")
        for rows in batches:
            probabilities[rows] = _predict_batch(classifier, [encoded.input_ids[row] for row in rows])
            bar.advance(task, len(rows))
    return probabilities, encoded.truncation


def _batches(lengths: Sequence[int], batch_size: int, tokens_per_batch: int | None) -> list[list[int]]:
    """Return the documents in batches, the longest ones first: a memory that is too small shows at once."""
    order = by_length(lengths)
    if tokens_per_batch is not None:
        return cut(order, lengths, tokens_per_batch)
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@torch.inference_mode()
def _predict_batch(classifier: Classifier, documents: Sequence[Sequence[int]]) -> np.ndarray:
    collator = PaddingCollator(int(classifier.tokenizer.pad_token_id))
    batch = collator([{"input_ids": ids} for ids in documents])
    device = next(classifier.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=classifier.precision == "bf16"):
        logits = classifier.model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
    return probabilities_of(logits.float().cpu().numpy())


def _load_adapter(folder: Path) -> Classifier:
    _check_weights(folder, "adapter_model.safetensors")
    card, config = _read_card(folder), _read_config(folder)
    source = _base_model(config, card, folder)
    labels = card.get("labels")
    base = load_classifier(source, labels) if labels else _with_own_labels(source)
    with warnings.catch_warnings(record=True) as said, _adapter_errors(folder):
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(base, str(folder))
    missing = [str(warning.message) for warning in said if "missing adapter keys" in str(warning.message)]
    if missing:
        raise AdapterError(f"{folder}: the adapter is incomplete: {' '.join(missing[0].split())[:200]}")
    return _ready(model, folder if _has_tokenizer(folder) else Path(source), card)


def _load_model(folder: Path) -> Classifier:
    _check_weights(folder, "model.safetensors", sharded="model.safetensors.index.json")
    with quiet_transformers(), _adapter_errors(folder):
        model, info = load_weights(folder, output_loading_info=True)
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise AdapterError(f"{folder}: the model has no trained head ({missing}); train one, or give an adapter folder")
    return _ready(model, folder, _read_card(folder))


def _ready(model: PreTrainedModel | PeftModel, tokenizer_source: Path, card: dict[str, Any]) -> Classifier:
    use_fast_attention(model)  # adapters of foretoken's bring it along; LoRA and whole models do not
    config: Any = model.config
    tokenizer = load_tokenizer(str(tokenizer_source), config)
    labels = card.get("labels") or [config.id2label[index] for index in range(config.num_labels)]
    max_length = card.get("max_length") or chosen_max_length(None, config, tokenizer)
    config.pad_token_id = tokenizer.pad_token_id
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = card.get("recipe", {}).get("data", {})
    columns = {name: data[name] for name in ("text_column", "label_column") if name in data}
    return Classifier(_on(model, device), tokenizer, labels, max_length, **columns)


def _on(model: Any, device: str) -> Any:
    return model.to(device).eval()


def adapter_folder(folder: Path) -> Path:
    """Step from a run folder to what it saved.

    Raises:
        AdapterError: it is no folder, or a run that has saved nothing yet.
    """
    if not folder.is_dir():
        raise AdapterError(f"{folder} is {'a file' if folder.exists() else 'not there'}; {EXPECTED}")
    if not (folder / RUN_FILE).is_file():
        return folder
    for name in ("adapter", "model"):
        if (folder / name).is_dir():
            return folder / name
    status = (read_record(folder) or {}).get("status", "unreadable")
    raise AdapterError(
        f"{folder}: the run has saved no adapter yet (status: {status}); finish it with `foretoken train`"
    )


def _contents(folder: Path) -> str:
    names = sorted(item.name for item in folder.iterdir())
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"holds {shown}" if names else "is empty"


def _check_weights(folder: Path, name: str, *, sharded: str | None = None) -> None:
    """Open the header, which is compared with the size of the file, before anything large is loaded."""
    if sharded and (folder / sharded).is_file():
        return
    if not (folder / name).is_file():
        raise AdapterError(f"{folder} {_contents(folder)}; {name} is missing")
    try:
        with safe_open(folder / name, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{folder / name} is cut short or corrupt ({error}); copy or train it again") from error


def _read_card(folder: Path) -> dict[str, Any]:
    return _read_json(folder / CARD) if (folder / CARD).is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path} is cut short or corrupt ({error}); copy or train it again") from error
    if not isinstance(values, dict):
        raise AdapterError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def _read_config(folder: Path) -> PeftConfig:
    _read_json(folder / "adapter_config.json")
    with _adapter_errors(folder):
        return PeftConfig.from_pretrained(str(folder))


def _base_model(config: PeftConfig, card: dict[str, Any], folder: Path) -> str:
    """Return where the base model loads from; `minilm` is looked up anew where its folder has moved."""
    base = config.base_model_name_or_path
    recipe = card.get("recipe", {})
    if base and Path(base).is_absolute() and not Path(base).is_dir():
        if recipe and not recipe.get("lengthen"):
            return resolve_source(recipe["model"])
        raise AdapterError(f"{folder}: its base model {base} is not there; {_remedy(recipe, base)}")
    if not base:
        raise AdapterError(f"{folder}: adapter_config.json names no base model")
    return base


def _remedy(recipe: dict[str, Any], base: str) -> str:
    options = recipe.get("lengthen")
    if not options:
        return "put it back, or correct base_model_name_or_path in adapter_config.json"
    lengths = f"--max-length {options['max_length']} --attention-window {options['attention_window']}"
    return f"make it again with `foretoken lengthen {recipe['model']} {base} {lengths}`"


def _with_own_labels(source: str) -> PreTrainedModel:
    with quiet_transformers():
        return load_weights(source)


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()


@contextmanager
def _adapter_errors(folder: Path) -> Iterator[None]:
    """Turn what peft and transformers raise for a folder into one AdapterError that names it."""
    try:
        yield
    except (ValueError, KeyError, RuntimeError, TypeError, OSError, SafetensorError) as error:
        if isinstance(error, ForetokenError):
            raise
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
        raise AdapterError(f"{folder}: cannot be loaded: {reason}") from error
