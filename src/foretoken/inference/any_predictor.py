"""What predicts: a model that training wrote, or the tf-idf baseline beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from foretoken.data.plain_table import Table
from foretoken.errors import AdapterError
from foretoken.inference.predictor import Predictor, adapter_folder, load_for_inference, predict_rows
from foretoken.metrics.scaling import Scaling
from foretoken.training.baseline.tfidf import VOCABULARY, Tfidf, load, texts_of, word_counts
from foretoken.training.problems import Problem
from foretoken.training.run.card import CARD, read_card
from foretoken.training.tokens.encode import Truncation, count_lengths


@dataclass(frozen=True)
class BaselinePredictor:
    """The baseline ready to predict; its fields are those of a Predictor that it shares."""

    baseline: Tfidf
    problem: Problem
    columns: Mapping[str, str] = field(default_factory=dict)
    scaling: Scaling | None = None
    max_length: int | None = None
    source: str = ""  # there is no pretrained model

    @property
    def labels(self) -> list[str]:
        """The classes, in the order of the outputs."""
        return list(self.problem.labels)


AnyPredictor: TypeAlias = Predictor | BaselinePredictor


def load_predictor(
    folder: str | Path, *, precision: str = "fp32", base_model: str | None = None, accept_changed: bool = False
) -> AnyPredictor:
    """Load an adapter folder, a run folder, a model folder, a baseline's, or any of them from the hub by its name.

    What may be said beside the folder is as in :func:`~foretoken.inference.predictor.load_for_inference`.

    Raises:
        AdapterError: the folder holds none of them, or a file in it is missing, corrupt or of another model.
        BackboneError: the adapter's base model cannot be loaded.
    """
    place = adapter_folder(Path(folder))
    if (place / VOCABULARY).is_file() and base_model is None:
        return _load_baseline(place)
    return load_for_inference(place, precision=precision, base_model=base_model, accept_changed=accept_changed)


def predict_table(
    predictor: AnyPredictor,
    table: Table,
    *,
    batch_size: int = 16,
    tokens_per_batch: int | None = None,
    scaled: bool = True,
) -> tuple[Any, Truncation, list[int]]:
    """Return what :func:`~foretoken.inference.predictor.predict_rows` does; the baseline reads no batches."""
    if isinstance(predictor, Predictor):
        return predict_rows(predictor, table, batch_size=batch_size, tokens_per_batch=tokens_per_batch, scaled=scaled)
    texts = texts_of(table)
    lengths = word_counts(texts)
    outputs, _ = predictor.problem.decode(predictor.baseline.logits(texts), None)
    if scaled and predictor.scaling is not None:
        outputs = predictor.scaling.apply(outputs)
    return outputs, count_lengths(lengths, None), lengths


def _load_baseline(folder: Path) -> BaselinePredictor:
    baseline, card = load(folder), read_card(folder)
    problem = card.make_problem()
    outputs = 1 if problem is None else len(problem.labels) or 1
    if problem is None or len(baseline.bias) != outputs:
        raise AdapterError(f"{folder}: {CARD} does not fit the baseline beside it; copy both again, or train again")
    return BaselinePredictor(baseline, problem, columns=card.columns, scaling=card.scaling)
