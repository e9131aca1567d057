"""What a run leaves: predictions, the saved model, and what its timings say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from peft import PeftModel

from foretoken import __version__
from foretoken.files import atomic_directory, atomic_file, write_json
from foretoken.metrics import classification_metrics
from foretoken.training.measure import probabilities_of
from foretoken.training.model import quiet_transformers
from foretoken.training.progress import StepTimes
from foretoken.training.recipe import Recipe
from foretoken.training.trainer import RecipeTrainer
from foretoken.training.typed import to_dict

if TYPE_CHECKING:
    from foretoken.training.train import Prepared

CARD = "foretoken.json"


@dataclass(frozen=True)
class Prediction:
    """Probabilities [B, C] and labels [B] of one split, in the order of its file."""

    ids: list[str]
    labels: np.ndarray
    probabilities: np.ndarray
    seconds: float

    def metrics(self, n_bins: int) -> dict[str, float]:
        """Return the classification metrics of the split."""
        return classification_metrics(self.probabilities, self.labels, n_bins=n_bins)


def predict_split(trainer: RecipeTrainer, table: Dataset) -> Prediction:
    """Predict a split that is sorted by length, and put the rows back into their order."""
    output = trainer.predict(table)
    order = np.argsort(np.asarray(table["position"]))
    ids = table["id"]
    return Prediction(
        ids=[ids[index] for index in order],
        labels=np.asarray(output.label_ids)[order],
        probabilities=probabilities_of(output.predictions)[order],
        seconds=(output.metrics or {})["test_runtime"],
    )


def write_predictions(path: Path, predictions: Mapping[str, Prediction], names: Sequence[str]) -> None:
    """Write one row per document: split, id, label, prediction and a probability per label."""
    tables = [prediction_table(split, item, names) for split, item in predictions.items()]
    with atomic_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary)


def prediction_table(split: str, prediction: Prediction, names: Sequence[str]) -> pa.Table:
    """Return the predictions of a split as a table."""
    columns: dict[str, Any] = {
        "split": [split] * len(prediction.ids),
        "id": prediction.ids,
        "label": [names[index] for index in prediction.labels],
        "prediction": [names[index] for index in prediction.probabilities.argmax(axis=1)],
    }
    columns |= {f"prob_{name}": prediction.probabilities[:, index] for index, name in enumerate(names)}
    return pa.table(columns)


def save_model(prepared: Prepared, recipe: Recipe) -> Path:
    """Save the adapter (or the fully tuned model) with its tokenizer and a card for `foretoken predict`."""
    folder = recipe.run_folder / ("adapter" if isinstance(prepared.model, PeftModel) else "model")
    with atomic_directory(folder) as temporary, quiet_transformers():
        prepared.model.save_pretrained(str(temporary))
        prepared.tokenizer.save_pretrained(str(temporary))
        write_json(temporary / CARD, _card(prepared, recipe))
    return folder


def timings(trainer: RecipeTrainer, predictions: Mapping[str, Prediction]) -> dict[str, float | None]:
    """Return seconds of training, of a step and of evaluation, and tokens (no padding) trained on per second."""
    clock = next(item for item in trainer.callback_handler.callbacks if isinstance(item, StepTimes))
    tokens = trainer.state.num_input_tokens_seen
    evaluations = [entry["eval_runtime"] for entry in trainer.state.log_history if "eval_runtime" in entry]
    return {
        "train_seconds": clock.total,
        "step_seconds_median": clock.median,
        "eval_seconds": sum(evaluations) + sum(item.seconds for item in predictions.values()),
        "tokens_per_second": tokens / clock.total if clock.total else None,
    }


def _card(prepared: Prepared, recipe: Recipe) -> dict[str, Any]:
    values = {
        "foretoken": __version__,
        "labels": prepared.labels,
        "max_length": prepared.max_length,
        "base_model": prepared.base_model,
        "recipe": to_dict(recipe),
    }
    return json.loads(json.dumps(values))
