"""What both clients send, and how they read what comes back."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter

from foretoken.errors import AdapterError, ForetokenError
from foretoken.serving.schema import (
    AdapterAnswer,
    ChosenAnswer,
    ClassifyAnswer,
    CompletionAnswer,
    EmbeddingsAnswer,
    FoundAnswer,
    ModelItem,
    ModelsAnswer,
    RerankAnswer,
)

T = TypeVar("T")
Texts = str | Sequence[str]
_FILES = ("adapter_config.json", "adapter_model.safetensors", "foretoken.json")
_SAVED = ("adapter",)  # where a run keeps its adapter
Entities = list[dict[str, Any]]


class ServerError(ForetokenError, RuntimeError):
    """The server refused a request, or could not answer it.

    Attributes:
        status: of HTTP.
        retry_after: seconds after which the server asks to be tried again; None where it does not.
    """

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and the type of its answer."""

    method: str
    path: str
    answer: TypeAdapter[T]
    given: dict[str, Any] = field(default_factory=dict)

    def read(self, answer: httpx.Response) -> T:
        """Return the answer.

        Raises:
            ServerError: it is an error.
        """
        if answer.is_success:
            return self.answer.validate_json(answer.content)
        wait = answer.headers.get("retry-after", "")
        raise ServerError(_message(answer), answer.status_code, float(wait) if wait.isdigit() else None)


def classify(
    model: str | None, texts: Texts, pairs: Texts | None, min_confidence: float | None, coverage: float | None
) -> Call[ClassifyAnswer]:
    """Return the request of ``/classify``."""
    body = {
        "model": model,
        "input": _plain(texts),
        "text_pair": None if pairs is None else _plain(pairs),
        "min_confidence": min_confidence,
        "coverage": coverage,
    }
    return Call("POST", "/classify", TypeAdapter(ClassifyAnswer), {"json": body})


def tag(model: str, texts: Sequence[str], strategy: str, stride: int | None) -> Call[list[Entities]]:
    """Return the request of ``/models/NAME`` for an adapter that tags."""
    body = {"inputs": list(texts), "parameters": {"aggregation_strategy": strategy, "stride": stride}}
    return Call("POST", f"/models/{quote(model, safe='')}", TypeAdapter(list[Entities]), {"json": body})


def answer(model: str, question: str, context: str) -> Call[FoundAnswer]:
    """Return the request of ``/models/NAME`` for an adapter that answers questions."""
    body = {"inputs": {"question": question, "context": context}}
    return Call("POST", f"/models/{quote(model, safe='')}", TypeAdapter(FoundAnswer), {"json": body})


def choose(model: str, text: str, choices: Sequence[str]) -> Call[ChosenAnswer]:
    """Return the request of ``/models/NAME`` for an adapter that chooses."""
    body = {"inputs": {"text": text, "choices": list(choices)}}
    return Call("POST", f"/models/{quote(model, safe='')}", TypeAdapter(ChosenAnswer), {"json": body})


def embed(model: str | None, texts: Texts) -> Call[EmbeddingsAnswer]:
    """Return the request of ``/v1/embeddings``."""
    body = {"model": model, "input": _plain(texts)}
    return Call("POST", "/v1/embeddings", TypeAdapter(EmbeddingsAnswer), {"json": body})


def rerank(model: str | None, query: str, documents: Sequence[str], top_n: int | None) -> Call[RerankAnswer]:
    """Return the request of ``/rerank``."""
    body = {"model": model, "query": query, "documents": list(documents), "top_n": top_n}
    return Call("POST", "/rerank", TypeAdapter(RerankAnswer), {"json": body})


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How texts go on, as OpenAI's requests say it.

    Attributes:
        max_tokens: of each text.
        temperature: 0 for the likeliest token at every step.
        top_p: draw from the likeliest tokens with so much probability.
        stop: texts that end a text and are left out of it.
        seed: for the same texts at every request.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    stop: Texts | None = None
    seed: int | None = None


def complete(model: str | None, prompt: Texts, writing: Writing, *, stream: bool = False) -> Call[CompletionAnswer]:
    """Return the request of ``/v1/completions``."""
    stop = None if writing.stop is None else _plain(writing.stop)
    body = {"model": model, "prompt": _plain(prompt), "stream": stream} | asdict(writing) | {"stop": stop}
    if stream:
        body["stream_options"] = {"include_usage": True}
    return Call("POST", "/v1/completions", TypeAdapter(CompletionAnswer), {"json": body})


def part_of(line: str) -> CompletionAnswer | None:
    """Return the part of a stream that a line holds; None for lines that hold none.

    Raises:
        ServerError: the server could not go on.
    """
    said = line.removeprefix("data: ")
    if said == line or said == "[DONE]":
        return None
    values = json.loads(said)
    if "error" in values:
        raise ServerError(str(values["error"]["message"]), int(values["error"]["code"]))
    return CompletionAnswer.model_validate(values)


def models() -> Call[ModelsAnswer]:
    """Return the request of ``/v1/models``."""
    return Call("GET", "/v1/models", TypeAdapter(ModelsAnswer))


def load(name: str, folder: str | Path) -> Call[AdapterAnswer]:
    """Return the request that uploads an adapter's files.

    Raises:
        AdapterError: the folder holds none.
    """
    body = {"content": zipped(Path(folder)), "headers": {"content-type": "application/zip"}}
    return Call("POST", _place(name), TypeAdapter(AdapterAnswer), body)


def remove(name: str) -> Call[AdapterAnswer]:
    """Return the request that removes an adapter."""
    return Call("DELETE", _place(name), TypeAdapter(AdapterAnswer))


def adapters_of(answer: ModelsAnswer) -> list[ModelItem]:
    """Return the adapters among the models: those that have a parent."""
    return [item for item in answer.data if item.parent is not None]


def zipped(folder: Path) -> bytes:
    """Return an adapter's files as a zip archive."""
    place = next((folder / name for name in _SAVED if (folder / name).is_dir()), folder)
    found = [place / name for name in _FILES if (place / name).is_file()]
    if len({file.name for file in found} & set(_FILES[:2])) < 2:
        raise AdapterError(f"{folder} lacks {' or '.join(_FILES[:2])}; expected an adapter's folder, or a run's")
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for file in found:
            archive.write(file, file.name)
    return written.getvalue()


def settings(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the settings of httpx's clients."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    return {"base_url": url, "headers": headers, "timeout": timeout}


def _place(name: str) -> str:
    return f"/v1/adapters/{quote(name, safe='')}"


def _plain(texts: Texts) -> str | list[str]:
    return texts if isinstance(texts, str) else list(texts)


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {answer.status_code}"
