"""What a client can ask of an adapter: classes, a number, tags, or a document's embedding.

A task makes token rows of a document, and an answer of what the model computed for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from foretoken.backbones.pooling import sentence_vectors
from foretoken.data.documents import is_readable
from foretoken.data.plain_table import PlainTable
from foretoken.errors import DataError
from foretoken.serving.adapters import CLASSIFIED, EMBEDDINGS, Adapter
from foretoken.serving.compute import Kind
from foretoken.serving.errors import WrongTaskError
from foretoken.training.baseline.tfidf import texts_of
from foretoken.training.tokens.encode import EncodeSettings, TokenRow
from foretoken.training.tokens.texts import encode_texts

T = TypeVar("T", covariant=True)
Read: TypeAlias = tuple[list[TokenRow], int, bool]


@dataclass(frozen=True)
class TextInput:
    """One text, or token numbers in its place; ``pair`` is the second text for adapters trained on pairs."""

    text: str | Sequence[int]
    pair: str | None = None

    @property
    def sequences(self) -> int:
        """How many documents it counts as."""
        return 1

    @property
    def characters(self) -> int:
        """Letters that are read, or token numbers."""
        return len(self.text) + len(self.pair or "")


@dataclass(frozen=True)
class PreparedDocument(Generic[T]):
    """A document as token rows.

    Attributes:
        rows: what the model reads.
        finish: makes the answer of the rows' results.
    """

    rows: list[TokenRow]
    finish: Callable[[list[Tensor]], T]


class ServingTask(Protocol[T]):
    """What is asked."""

    @property
    def kind(self) -> Kind:
        """Whether it is made of logits or of hidden states."""

    def prepare(self, adapter: Adapter, document: TextInput) -> PreparedDocument[T]:
        """Return the rows of a document.

        Raises:
            DataError: there is no text in it.
            WrongTaskError: the adapter does something else.
        """


def check_task(adapter: Adapter, *tasks: str) -> None:
    """Raise a WrongTaskError, which says where to ask, unless an adapter does one of the tasks."""
    if adapter.task not in tasks:
        routes = {EMBEDDINGS: "/v1/embeddings"} | dict.fromkeys(CLASSIFIED, "/classify")
        route = routes.get(adapter.task, f"/models/{adapter.name}")
        raise WrongTaskError(f"{adapter.name!r} does {adapter.task}, which POST {route} answers")


@dataclass(frozen=True)
class TextPrediction:
    """What is predicted for a document.

    Attributes:
        labels: the names of the outputs; none for a single number.
        logits: of the model (C,); for regression the numbers (K,).
        probabilities: of the labels (C,), scaled as fitted in training; None for regression.
        tokens: how many were read.
        truncated: whether the document was longer.
        numbers: for regression what ``foretoken predict`` says: ``value`` or ``values``, and ``std`` if it is fitted.
        answered: the numbers of the labels that are answered, the likeliest first; none for regression.
    """

    labels: tuple[str, ...]
    logits: np.ndarray
    probabilities: np.ndarray | None
    tokens: int
    truncated: bool
    numbers: dict[str, Any] = field(default_factory=dict)
    answered: tuple[int, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the labels that are answered."""
        return [self.labels[number] for number in self.answered]

    @property
    def best(self) -> int:
        """The number of the label that is answered, the likeliest one of several; where none is, of all."""
        values = self.logits if self.probabilities is None else self.probabilities
        return self.answered[0] if self.answered else int(values.argmax())

    @property
    def confidence(self) -> float:
        """The probability of that label; 1 for a number."""
        return 1.0 if self.probabilities is None else float(self.probabilities[self.best])


@dataclass(frozen=True)
class Classify:
    """The probabilities of classes, or a number.

    Attributes:
        max_tokens: cut the document to fewer tokens than the adapter's length.
        known: keeps the tokens of documents, which many adapters read alike, while it is asked of these; or None.
    """

    max_tokens: int | None = None
    known: dict[tuple[int, EncodeSettings], Read] | None = field(default=None, compare=False)
    kind: Kind = "logits"

    def prepare(self, adapter: Adapter, document: TextInput) -> PreparedDocument[TextPrediction]:
        """Return the document, or its chunks where the adapter was trained with chunks."""
        check_task(adapter, *CLASSIFIED)
        if adapter.problem.pairs != (document.pair is not None):
            expected = "pairs of texts" if adapter.problem.pairs else "single texts"
            raise WrongTaskError(f"{adapter.name!r} was trained on {expected}")
        known, key = {} if self.known is None else self.known, (id(document), adapter.settings)
        if key not in known:
            known[key] = read(adapter, document, self.max_tokens)
        rows, tokens, truncated = known[key]
        offset = _offset(adapter, document)

        def finish(results: list[Tensor]) -> TextPrediction:
            logits = _pooled(adapter, results) + offset
            outputs, _ = adapter.problem.decode(logits[None], None)
            if not adapter.problem.has_probabilities:
                numbers = adapter.problem.to_json(outputs, PlainTable({}))[0]
                return TextPrediction(adapter.labels, outputs.reshape(-1), None, tokens, truncated, numbers)
            scaled = outputs if adapter.scaling is None else adapter.scaling.apply(outputs)
            answered = tuple(adapter.problem.answered(scaled)[0])
            return TextPrediction(adapter.labels, logits, scaled[0], tokens, truncated, answered=answered)

        return PreparedDocument(rows, finish)


@dataclass(frozen=True)
class Embed:
    """A document's last hidden states as one vector of length 1: their mean, or what the sentence encoder takes."""

    kind: Kind = "states"

    def prepare(self, adapter: Adapter, document: TextInput) -> PreparedDocument[Embedding]:
        """Return the document, cut to the adapter's length."""
        if (pool := adapter.pool) is None:
            raise WrongTaskError("the model is an encoder-decoder, whose states are no vectors of texts")
        rows, tokens, truncated = read(adapter, document, None)

        def finish(results: list[Tensor]) -> Embedding:
            states = torch.cat(results)[None]  # (1, N, D)
            vector = sentence_vectors(states, torch.ones(states.shape[:2], dtype=torch.bool), pool=pool)[0]
            return Embedding(vector.numpy(), tokens, truncated)

        return PreparedDocument(rows, finish)


@dataclass(frozen=True)
class Embedding:
    """A document's vector (D,), how many tokens were read, and whether there were more."""

    vector: np.ndarray
    tokens: int
    truncated: bool


def read(adapter: Adapter, document: TextInput, at_most: int | None) -> Read:
    """Return the rows of a document, how many tokens they have, and whether it was truncated."""
    settings = adapter.settings
    limit = settings.max_length if at_most is None else min(at_most, settings.max_length)
    least = settings.tokenizer.num_special_tokens_to_add(pair=document.pair is not None) + 1
    if at_most is not None and at_most < least:
        raise DataError(
            f"truncate_prompt_tokens: got {at_most}, expected {least} or more, or -1 to read as in training"
        )
    if not isinstance(document.text, str):
        ids = document.text
        _check_tokens(document, settings.rules.vocab_size)
        return [{"input_ids": list(ids[:limit])}], min(len(ids), limit), len(ids) > limit
    if not is_readable(document.text) or not is_readable(document.pair or document.text):
        raise DataError("the document is empty; expected some text")
    if at_most is not None:
        most = at_most if settings.max_tokens is None else min(at_most, settings.max_tokens)
        settings = replace(settings, max_tokens=most)
    pairs = None if document.pair is None else [document.pair]
    columns, truncation = encode_texts([document.text], pairs, settings)
    tokens = columns["length"][0]
    return list(columns["sequences"][0]), tokens, bool(truncation.truncated)


def _check_tokens(document: TextInput, size: int | None) -> None:
    if document.pair is not None:
        raise DataError("text_pair: token numbers are read as they are, without a second text; leave it out")
    ids, most = document.text, 2**31 if size is None else size
    if not ids or min(ids) < 0 or max(ids) >= most:  # type: ignore[type-var,operator]
        wrong = next((number for number in ids if not 0 <= number < most), "none")  # type: ignore[operator]
        raise DataError(f"token numbers: got {wrong}, expected some, each from 0 to {most - 1:,}")


def _offset(adapter: Adapter, document: TextInput) -> np.ndarray | float:
    """Return what the words beside the model add to a document's logits."""
    if not adapter.has_words:
        return 0.0
    if not isinstance(document.text, str):
        raise WrongTaskError(f"{adapter.name!r} reads words beside the model, which token numbers are not; send texts")
    words = adapter.tfidf()
    assert words is not None
    columns = {"text": [document.text]} | ({} if document.pair is None else {"text_pair": [document.pair]})
    return words.logits(texts_of(PlainTable(columns)))[0].astype(np.float32)


def _pooled(adapter: Adapter, results: list[Tensor]) -> np.ndarray:
    """Return the logits of a document, given those of each chunk; a head that pools has read them together."""
    if len(results) == 1 or adapter.pools:
        return results[0].float().numpy()
    return torch.stack(results).float().mean(dim=0).numpy()
