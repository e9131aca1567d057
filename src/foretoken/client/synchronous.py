"""The client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

import httpx

from foretoken.client import calls
from foretoken.client.calls import Call, Entities, Texts, Writing
from foretoken.serving.schema import (
    AdapterAnswer,
    ChosenAnswer,
    ClassifyAnswer,
    CompletionAnswer,
    EmbeddingsAnswer,
    FoundAnswer,
    ModelItem,
    RerankAnswer,
)

T = TypeVar("T")
Strategy = Literal["none", "simple", "first", "average", "max"]


class Client:
    """Speaks to a foretoken server.

    Args:
        url: of the server.
        api_key: that it was started with, if any; the admin key for :meth:`load` and :meth:`remove`.
        timeout: seconds to wait for an answer.
        transport: of httpx, in the place of its own.

    Every method raises a :class:`~foretoken.client.ServerError` where the server refuses the request.

    >>> with_key = Client("http://127.0.0.1:8000", api_key="secret")
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**calls.settings(url, api_key, timeout), transport=transport)

    def __enter__(self) -> Client:
        """Use the client in a with block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close its connections."""
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def classify(
        self,
        texts: Texts,
        *,
        model: str | None = None,
        text_pair: Texts | None = None,
        min_confidence: float | None = None,
        coverage: float | None = None,
    ) -> ClassifyAnswer:
        """Predict a class, or a number, for each text.

        Args:
            texts: one, or several.
            model: the adapter; may be left out where there is one.
            text_pair: second texts, for adapters trained on pairs.
            min_confidence: abstain where the answer is less sure than this.
            coverage: abstain below the confidence that this share of the validation documents has.
        """
        return self._call(calls.classify(model, texts, text_pair, min_confidence, coverage))

    def tag(
        self, texts: Sequence[str], *, model: str, aggregation_strategy: Strategy = "simple", stride: int | None = None
    ) -> list[Entities]:
        """Return the entities in each text, as transformers' pipeline does."""
        return self._call(calls.tag(model, texts, aggregation_strategy, stride))

    def answer(self, question: str, context: str, *, model: str) -> FoundAnswer:
        """Return the part of a context that answers a question."""
        return self._call(calls.answer(model, question, context))

    def choose(self, text: str, choices: Sequence[str], *, model: str) -> ChosenAnswer:
        """Return the likeliest of the choices that a question brings along."""
        return self._call(calls.choose(model, text, choices))

    def embed(self, texts: Texts, *, model: str | None = None) -> EmbeddingsAnswer:
        """Return a vector for each text."""
        return self._call(calls.embed(model, texts))

    def rerank(
        self, query: str, documents: Sequence[str], *, model: str | None = None, top_n: int | None = None
    ) -> RerankAnswer:
        """Return the documents' scores, the most relevant first."""
        return self._call(calls.rerank(model, query, documents, top_n))

    def complete(self, prompt: Texts, *, model: str | None = None, writing: Writing | None = None) -> CompletionAnswer:
        """Write the text that follows each prompt, with an adapter of a decoder or an encoder-decoder.

        Args:
            prompt: one, or several.
            model: the adapter, or the pretrained model's own name; may be left out where there is one adapter.
            writing: how the texts go on.
        """
        return self._call(calls.complete(model, prompt, writing or Writing()))

    def stream(
        self, prompt: Texts, *, model: str | None = None, writing: Writing | None = None
    ) -> Iterator[CompletionAnswer]:
        """Yield the parts of the texts as they are written; the last part has the numbers of tokens and no text."""
        call = calls.complete(model, prompt, writing or Writing(), stream=True)
        with self._http.stream(call.method, call.path, **call.given) as answer:
            if not answer.is_success:
                answer.read()
                call.read(answer)
            for line in answer.iter_lines():
                if (part := calls.part_of(line)) is not None:
                    yield part

    def adapters(self) -> list[ModelItem]:
        """List the adapters."""
        return calls.adapters_of(self._call(calls.models()))

    def load(self, name: str, folder: str | Path) -> AdapterAnswer:
        """Upload an adapter's folder, or a run's; one of the same name is replaced."""
        return self._call(calls.load(name, folder))

    def remove(self, name: str) -> AdapterAnswer:
        """Remove an adapter."""
        return self._call(calls.remove(name))

    def _call(self, call: Call[T]) -> T:
        return call.read(self._http.request(call.method, call.path, **call.given))
