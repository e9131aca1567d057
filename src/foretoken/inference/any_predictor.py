"""Predictions by a trained model or by the tf-idf baseline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from foretoken.backbones.fast_maps import pack_weights
from foretoken.data.plain_table import PlainTable, Table
from foretoken.data.readers.rows import ERROR, BadRow, BadRows
from foretoken.errors import AdapterError, DataError
from foretoken.inference.guarantee import Guarantee
from foretoken.inference.predictor import Predictor, load_for_inference, predict_rows, rows_without_tokens
from foretoken.metrics.decision import Decision
from foretoken.metrics.scaling import Scaling
from foretoken.training.baseline.tfidf import VOCABULARY, Tfidf, load, texts_of, word_counts
from foretoken.training.problems import Problem
from foretoken.training.run.card import CARD, read_card
from foretoken.training.saved_folder import adapter_folder
from foretoken.training.tokens.encode import EncodeSettings, Truncation, count_lengths, describe
from foretoken.training.trainer.progress import predicting

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaselinePredictor:
    """The tf-idf baseline ready to predict; its fields have the meaning of a Predictor's."""

    baseline: Tfidf
    problem: Problem
    columns: Mapping[str, Any] = field(default_factory=dict)
    scaling: Scaling | None = None
    unscaled_decision: Decision | None = None
    settings: EncodeSettings | None = None
    source: str = ""  # there is no pretrained model

    @property
    def labels(self) -> list[str]:
        """The classes, in the order of the outputs."""
        return list(self.problem.labels)


AnyPredictor: TypeAlias = Predictor | BaselinePredictor


def posed(predictor: AnyPredictor, *, scaled: bool = True) -> Problem:
    """Return the predictor's problem, with the decision for scaled or unscaled probabilities."""
    problem = predictor.problem
    return problem if scaled or predictor.scaling is None else problem.answering(predictor.unscaled_decision, None)


def load_predictor(
    folder: str | Path, *, precision: str = "fp32", base_model: str | None = None, accept_changed: bool = False
) -> AnyPredictor:
    """Load the folder of an adapter, a run, a model or a baseline, or one of them from the hub by its name.

    The options are those of :func:`~foretoken.inference.predictor.load_for_inference`.

    Raises:
        AdapterError: the folder holds none of them, or a file in it is missing, corrupt or of another model.
        BackboneError: the adapter's base model cannot be loaded.
    """
    saved = adapter_folder(Path(folder))
    if (saved / VOCABULARY).is_file() and base_model is None:
        return _load_baseline(saved)
    loaded = load_for_inference(saved, precision=precision, base_model=base_model, accept_changed=accept_changed)
    pack_weights(loaded.model)
    return loaded


def predict_table(
    predictor: AnyPredictor,
    table: Table,
    *,
    scaled: bool = True,
    advance: Callable[[int], object] = lambda _: None,
    **batches: int | None,
) -> tuple[Any, Truncation, list[int]]:
    """Return what :func:`~foretoken.inference.predictor.predict_rows` does; the baseline ignores batch sizes."""
    if isinstance(predictor, Predictor):
        sizes: dict[str, Any] = batches
        return predict_rows(predictor, table, scaled=scaled, advance=advance, **sizes)
    texts = texts_of(table)
    lengths = word_counts(texts)
    outputs, _ = predictor.problem.decode(predictor.baseline.logits(texts), None)
    if scaled and predictor.scaling is not None:
        outputs = predictor.scaling.apply(outputs)
    advance(len(texts))
    return outputs, count_lengths(lengths, None), lengths


def answer_pieces(
    predictor: AnyPredictor, pieces: Iterable[tuple[datasets.Dataset | PlainTable, BadRows]], **settings: Any
) -> Iterator[dict[str, Any]]:
    """Yield ``id`` and answer of every row of a source, in order; an unusable row has its ``error`` instead.

    Args:
        predictor: model or baseline.
        pieces: the source in pieces: its usable rows, with the unusable ones between them.
        settings: those of :func:`predict_table`, and the ``guarantee`` of the answers.

    Raises:
        DataError: a row has no tokens, and bad rows are errors.
    """
    counts = Truncation()
    with predicting() as advance:
        for table, bad_rows in pieces:
            answers, truncation = answer_rows(predictor, table, bad_rows, **settings, advance=advance)
            counts += truncation
            yield from answers
    log.info(describe(counts, predictor.settings))


def answer_rows(
    predictor: AnyPredictor,
    table: datasets.Dataset | PlainTable,
    bad_rows: BadRows,
    *,
    guarantee: Guarantee | None = None,
    **settings: Any,
) -> tuple[list[dict[str, Any]], Truncation]:
    """Return the answers to one piece of a source, and what was truncated; see :func:`answer_pieces`."""
    bad = {row.number: {"id": row.id, "error": row.reason} for row in bad_rows.rows}
    names, first = list(table["id"]), bad_rows.start
    numbers = [number for number in range(first, first + len(names) + len(bad)) if number not in bad]
    try:
        outputs, truncation, _ = predict_table(predictor, table, **settings) if names else ([], Truncation(), [])
    except DataError:
        reasons = rows_without_tokens(predictor, table) if isinstance(predictor, Predictor) else {}
        if bad_rows.policy == ERROR or not reasons:
            raise
        bad_rows.rows += [BadRow(numbers[row], names[row], names[row], reason) for row, reason in reasons.items()]
        others = table.select([row for row in range(len(names)) if row not in reasons])
        return answer_rows(predictor, others, bad_rows, guarantee=guarantee, **settings)
    said = posed(predictor, scaled=settings.get("scaled", True)).to_json(outputs, table) if names else []
    more = guarantee.additions(outputs) if guarantee is not None and names else [{} for _ in said]
    rows = zip(numbers, names, said, more, strict=True)
    answers = {number: {"id": name} | answer | added for number, name, answer, added in rows}
    return [answer for _, answer in sorted((bad | answers).items())], truncation


def _load_baseline(folder: Path) -> BaselinePredictor:
    baseline, card = load(folder), read_card(folder)
    problem = card.make_problem()
    outputs = 1 if problem is None else len(problem.labels) or 1
    if problem is None or len(baseline.bias) != outputs:
        raise AdapterError(f"{folder}: {CARD} does not fit the baseline beside it; copy both again, or train again")
    return BaselinePredictor(baseline, problem, card.columns, card.scaling, card.unscaled_decision)
