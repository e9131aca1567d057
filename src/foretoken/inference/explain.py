"""Which words, passages and chunks of a document an answer rests on: one function for each kind of evidence."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from foretoken.data.plain_table import PlainTable, Table
from foretoken.data.readers.rows import BadRows
from foretoken.errors import ConfigError, DataError, no_such, quoted
from foretoken.files import PathLike
from foretoken.inference.any_predictor import AnyPredictor, BaselinePredictor, answer_rows, load_predictor
from foretoken.inference.attributions import (
    TOLERANCE,
    Effort,
    Scores,
    integrated_gradients,
    output_logits,
    pooling_weights,
    pools_by_weight,
    spread,
)
from foretoken.inference.passages import Scored, passages_of, words_of
from foretoken.inference.predictor import Predictor, refuse_unusable_texts
from foretoken.training.problems.base import Problem
from foretoken.training.problems.classification import TextProblem
from foretoken.training.tokens.places import SPECIAL, PlacedTokens, Span, place_tokens

log = logging.getLogger(__name__)
By: TypeAlias = Literal["words", "passages"]
Answer: TypeAlias = dict[str, Any]
GRADIENTS, POOLING_WEIGHTS, TERM_WEIGHTS = "gradients", "pooling weights", "term weights"
FEW = 128  # tokens of a document whose words are scored where nobody says
CHUNKS = 8  # of a document, whose tokens are scored by gradients: those that add most to the logit, or take most


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """What is explained, and how.

    Attributes:
        label: in the place of the answer.
        by: what is scored: words, or passages; None: words of short documents, passages of others.
        top: how many of them are told, those with the largest scores.
        effort: what it may cost.
    """

    label: str | None = None
    by: By | None = None
    top: int = 10
    effort: Effort = field(default_factory=Effort)


@dataclass(frozen=True)
class Evidence:
    """What a document's tokens add to one output.

    Attributes:
        kind: what the scores are.
        tokens: the pieces of the document that have a score.
        label: of the output; None where the scores are of no label.
        delta: what the scores leave unexplained of the logit; None where that cannot be.
        chunks: what the document's chunks add, where it is read in several.
    """

    kind: str
    tokens: list[Scored]
    label: str | None = None
    delta: float | None = None
    chunks: Sequence[Scored] = ()


def explain(
    source: PathLike,
    texts: Sequence[str],
    *,
    label: str | None = None,
    by: By | None = None,
    top: int = 10,
    base_model: str | None = None,
    accept_changed: bool = False,
) -> list[Answer]:
    """Return the answer to each text, with the words or passages that it rests on as ``evidence``.

    Every piece of evidence has ``start``, ``end`` and ``text``, and a ``score``: what it adds to the answer's logit, or
    the weight by which a head with ``pool: attention`` reads it; ``by`` says which of them. Those with the largest
    scores come first.

    Args:
        source: a run, adapter or model folder, or its name on the hub: of classification or regression.
        texts: what is answered and explained.
        label: explain this one, whatever the answer is.
        by: ``words`` or ``passages``; None: words of up to 128 tokens, passages of longer texts.
        top: how many pieces of evidence a text has at most.
        base_model: where the pretrained model of an adapter is, in place of what its folder says.
        accept_changed: load an adapter though its pretrained model is not the one that it was trained on.

    Raises:
        AdapterError: the folder holds none of them, or its files are damaged.
        ConfigError: it does something else, has no such label, or captum is not installed.
        DataError: a text is empty, or there is none.

    >>> explain("runs/mail", ["see you at lunch", " "])
    Traceback (most recent call last):
    ...
    foretoken.errors.DataError: document 2 of 2 is empty; expected some text
    """
    if isinstance(texts, str) or not len(texts):
        raise DataError(f"texts: got {quoted(texts)}, expected a list of at least one text")
    refuse_unusable_texts(texts)
    predictor = load_predictor(source, base_model=base_model, accept_changed=accept_changed)
    predictor.problem.check_texts()
    table = PlainTable({"id": [str(number) for number in range(1, len(texts) + 1)], "text": list(texts)})
    options = ExplainOptions(label=label, by=by, top=top)
    return [answer for answer, _ in explain_rows(predictor, table, BadRows(), options)]


def explain_rows(
    predictor: AnyPredictor, table: Table, bad_rows: BadRows, options: ExplainOptions, **settings: Any
) -> Iterator[tuple[Answer, str]]:
    """Yield the answer to every row of a source, in order, with its evidence, and the text.

    One that is not usable has its ``error``.

    Args:
        predictor: what predicts.
        table: the rows that are usable.
        bad_rows: those of the source that are not.
        options: what is explained.
        settings: those of :func:`~foretoken.inference.any_predictor.predict_table`.
    """
    check_explainable(predictor, options.label)
    unusable = {row.number for row in bad_rows.rows}
    pairs = table["text_pair"] if "text_pair" in table.column_names else [None] * len(table["text"])
    texts = iter(zip(table["text"], pairs, strict=True))
    for number, answer in enumerate(answer_rows(predictor, table, bad_rows, **settings)):
        text, pair = ("", None) if number in unusable else next(texts)
        more = {} if "error" in answer else explain_answer(predictor, answer, text, pair, options)
        yield answer | more, text


def check_explainable(predictor: AnyPredictor, label: str | None) -> None:
    """Raise a ConfigError where answers cannot be explained, or there is no such label."""
    problem = predictor.problem
    if not isinstance(problem, TextProblem):
        raise ConfigError(
            f"answers are explained of classification and regression of texts, and this predicts {problem.name}; "
            "take `predict`"
        )
    if isinstance(predictor, Predictor) and predictor.precision != "fp32":
        raise ConfigError(f"answers are explained in fp32, got precision {predictor.precision}; leave it out")
    if label is not None and label not in problem.labels:
        what = no_such("label", label, problem.labels) if problem.labels else "a number has none; leave it out"
        raise ConfigError(f"label: {what}")


def explain_answer(
    predictor: AnyPredictor, answer: Answer, text: str, pair: str | None, options: ExplainOptions
) -> Answer:
    """Return ``by``, ``evidence``, and where there are any ``chunks`` and the gradients' ``delta``, of an answer."""
    texts = [text] if pair is None else [text, pair]
    targets = _targets(predictor.problem, answer, options.label)
    if isinstance(predictor, BaselinePredictor):
        found = [term_evidence(predictor, texts, *target) for target in targets]
    else:
        found = Document(predictor, place_tokens(text, pair, predictor.settings), options).evidence(targets)
    told: Answer = {"by": found[0].kind if found else GRADIENTS, "evidence": []}
    for item in found:
        pieces = words_of(item.tokens, texts)
        is_long = sum(piece.tokens for piece in pieces) > FEW
        if options.by == "passages" or (options.by is None and is_long):
            pieces = passages_of(pieces, texts)
        told["evidence"] += _told(pieces, texts, item.label, options.top)
        if item.chunks:
            told.setdefault("chunks", []).extend(_told(item.chunks, texts, item.label, options.top))
        if item.delta is not None:
            told["delta"] = max(told.get("delta", 0.0), item.delta, key=abs)
    return told


@dataclass(frozen=True)
class Document:
    """One document as a model reads it, to be explained."""

    predictor: Predictor
    placed: PlacedTokens
    options: ExplainOptions

    def evidence(self, targets: Sequence[tuple[str | None, int]]) -> list[Evidence]:
        """Return what the document's tokens add to each of some outputs."""
        passages = self.options.by == "passages" or (self.options.by is None and len(self.placed.spans) > FEW)
        if passages and self.options.label is None and targets and pools_by_weight(self.predictor):
            return [self.by_pooling(*targets[0])]
        return [self.by_gradients(*target) for target in targets]

    def by_pooling(self, label: str | None, target: int) -> Evidence:
        """Return the weights by which the head pools the tokens, times those of their chunks."""
        weights = [pooling_weights(self.predictor, row, self.options.effort) for row in self.placed.rows]
        shares = self.chunk_weights(target)
        scores = [share * weight for share, weight in zip(shares, weights, strict=True)]
        return Evidence(POOLING_WEIGHTS, self.scored(scores), chunks=self.chunks(label, target))

    def by_gradients(self, label: str | None, target: int) -> Evidence:
        """Return integrated gradients of the document's logit, in the chunks that add most to it."""
        shares, rows, effort = self.chunk_weights(target), self.placed.rows, self.options.effort
        adds = shares * self.logits[:, target] if len(rows) > 1 else shares
        scores, delta = [np.zeros(len(places)) for places in self.placed.places], 0.0
        for number in np.argsort(-np.abs(adds), kind="stable")[:CHUNKS]:
            if shares[number]:
                is_text = [place != SPECIAL for place in self.placed.places[number]]
                of_row, rest = integrated_gradients(self.predictor, rows[number], target, is_text, effort)
                scores[number] = shares[number] * of_row
                delta += shares[number] * rest
        tokens = self.scored(scores)
        if abs(delta) > 2 * TOLERANCE * sum(abs(token.score) for token in tokens):
            log.warning("the scores of a document leave %.3g of its logit unexplained; take them as rough", delta)
        return Evidence(GRADIENTS, tokens, label, delta, self.chunks(label, target))

    def scored(self, scores: Sequence[Scores]) -> list[Scored]:
        """Return the tokens of the text with their scores, given those of all rows."""
        total = spread(scores, self.placed.places, len(self.placed.spans))
        return [Scored(span, score) for span, score in zip(self.placed.spans, total.tolist(), strict=True)]

    @cached_property
    def logits(self) -> Scores:
        """The logits (S, C) of the chunks."""
        return output_logits(self.predictor, self.placed.rows, self.options.effort)

    def chunk_weights(self, target: int) -> Scores:
        """Return the weights (S,) of the chunks' logits in the document's logit."""
        count, chunks = len(self.placed.rows), self.predictor.chunks
        if count == 1 or chunks is None or chunks.pool == "mean":
            return np.full(count, 1 / count)
        return np.eye(count)[self.logits[:, target].argmax()]

    def chunks(self, label: str | None, target: int) -> list[Scored]:
        """Return the chunks of a document that is read in several, and their shares of its logit."""
        if len(self.placed.rows) == 1:
            return []
        shares, spans = (self.chunk_weights(target) * self.logits[:, target]).tolist(), self.placed.spans
        ends = [[place for place in places if place != SPECIAL] for places in self.placed.places]
        return [
            Scored(Span(spans[places[0]].start, spans[places[-1]].end), share)
            for places, share in zip(ends, shares, strict=True)
        ]


def term_evidence(predictor: BaselinePredictor, texts: Sequence[str], label: str | None, target: int) -> Evidence:
    """Return what each word adds to a logit of the tf-idf baseline: exactly weight x value of its terms."""
    tokens = [Scored(Span(*place), score) for place, score in predictor.baseline.contributions(texts, target)]
    return Evidence(TERM_WEIGHTS, tokens, label)


def _targets(problem: Problem, answer: Answer, label: str | None) -> list[tuple[str | None, int]]:
    """Return label and number of the outputs that are explained."""
    if not problem.labels:
        return [(None, 0)]
    names = [label] if label is not None else answer["labels"] if "labels" in answer else [answer["label"]]
    return [(name, problem.labels.index(name)) for name in names]


def _told(pieces: Sequence[Scored], texts: Sequence[str], label: str | None, top: int) -> list[Answer]:
    """Return the pieces with the largest scores, the largest one first."""
    chosen = sorted(filter(lambda piece: piece.score, pieces), key=lambda piece: -abs(piece.score))[:top]
    return [
        {
            "start": span.start,
            "end": span.end,
            "text": texts[span.side][span.start : span.end],
            "score": round(piece.score, 6),
        }
        | ({} if label is None else {"label": label})
        | ({"of": "text_pair"} if span.side else {})
        for piece in chosen
        for span in [piece.span]
    ]
