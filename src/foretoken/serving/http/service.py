"""What the routes share: the engine, the keys, and waiting for an answer while the client does."""

from __future__ import annotations

import asyncio
import hmac
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import anyio
from anyio import CapacityLimiter
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from foretoken.errors import ConfigError, ForetokenError
from foretoken.serving import requests as engines
from foretoken.serving.adapters import Adapter
from foretoken.serving.engine import ServingEngine
from foretoken.serving.errors import BusyError, NotReadyError
from foretoken.serving.explain import Explainer
from foretoken.serving.http.bodies import Asked, Body, GoneError, parse
from foretoken.serving.http.metrics import Metrics
from foretoken.serving.http.settings import ServerSettings
from foretoken.serving.schema import ErrorAnswer
from foretoken.serving.tasks import ServingTask, TextInput, TextPrediction

T = TypeVar("T")
P = ParamSpec("P")
_LARGE = 2**16  # bytes or characters that are read beside the event loop, one after the other
_bearer = HTTPBearer(auto_error=False, description="the key that the server was started with, if any")


class Service:
    """The server's state: settings, numbers, and the engine as soon as there is one."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.engine: ServingEngine | None = None
        self.explainer = None if settings.explain is None else Explainer(settings.explain)
        self._large = CapacityLimiter(1)
        self._spool = tempfile.TemporaryDirectory(prefix="foretoken-uploads-")
        self.uploads = Path(self._spool.name)

    def close(self) -> None:
        """Answer what was accepted, and remove what was uploaded."""
        if self.engine is not None:
            self.engine.close()
        self._spool.cleanup()

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered."""
        return self.engine is not None and self.engine.state == "ready"

    @property
    def running(self) -> ServingEngine:
        """The engine.

        Raises:
            NotReadyError: the server is starting, or has been told to stop.
        """
        if self.engine is None:
            raise NotReadyError("the server is starting; try again later")
        return self.engine

    def adapter(self, name: str | None) -> Adapter:
        """Return an adapter; without a name the only one.

        Raises:
            NoSuchAdapterError: there is none of this name.
            ConfigError: there is not one adapter alone.
        """
        store = self.running.store
        if name is None:
            names = store.names
            if len(names) != 1:
                raise ConfigError(f"model: there are {len(names)} adapters; name one, GET /v1/models lists them")
            name = names[0]
        return store.get(name)

    async def asked(self, http: Request, model: type[Asked]) -> Asked:
        """Return what a client asks, once its key is known to be right; large bodies are parsed one after the other."""
        body: Body = http.state.body
        body.check_type()
        whole = await body.whole()
        if len(whole) <= _LARGE:
            return parse(model, whole, self.settings)
        return await self._after_others(parse, model, whole, self.settings)

    async def ask(
        self, http: Request, adapter: Adapter, documents: Sequence[TextInput], task: ServingTask[T]
    ) -> list[T]:
        """Have documents answered; the request is given up when its client leaves."""
        (found,) = await self.ask_each(http, [adapter.name], documents, task)
        if isinstance(found, BaseException):
            raise found
        return found

    async def ask_each(
        self, http: Request, names: Sequence[str], documents: Sequence[TextInput], task: ServingTask[T]
    ) -> list[list[T] | BaseException]:
        """Have documents answered by several adapters, at once; an error in place of the answers of one that fails."""
        who = names[0] if len(names) == 1 else f"{len(names)} adapters"
        http.scope["state"].setdefault("log", {}).update(adapter=who, documents=len(documents))
        is_large = len(names) * sum(item.characters for item in documents) > _LARGE
        submit = self._after_others if is_large else run_in_threadpool
        found = await submit(self.running.submit_all, [engines.Request(name, documents, task) for name in names])
        futures = [_failed(one) if isinstance(one, ForetokenError) else asyncio.wrap_future(one) for one in found]
        answers = asyncio.gather(*futures, return_exceptions=True)
        gone = asyncio.ensure_future(_disconnected(http))
        either: set[asyncio.Future[Any]] = {answers, gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                raise GoneError
            return answers.result()
        finally:
            gone.cancel()
            for one in futures:
                one.cancel()  # and with it the engine's future, unless it is done

    async def explain(self, adapter: Adapter, documents: Sequence[TextInput], found: Sequence[TextPrediction]) -> Any:
        """Return what the answer to one document rests on.

        Raises:
            ConfigError: there are several documents, or nothing is explained here.
        """
        if self.explainer is None:
            raise ConfigError("explain: the server was started without --explain; leave it out")
        if len(documents) > 1:
            raise ConfigError(f"explain: got {len(documents)} documents; send one at a time")
        return await run_in_threadpool(self.explainer.explain, self.running, adapter, documents[0], found[0])

    async def _after_others(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Run on another thread what takes time and memory, one after the other; no longer wait than for an answer."""
        try:
            with anyio.fail_after(self.settings.limits.seconds_expected):
                await self._large.acquire()
        except TimeoutError:
            self.metrics.rejected("large requests")
            raise BusyError("too many large requests are being read; try again later", 1) from None
        try:
            return await run_in_threadpool(function, *args, **options)
        finally:
            self._large.release()

    async def call(self, function: Callable[[], T]) -> T:
        """Run something on the engine's thread."""
        return await asyncio.wrap_future(self.running.call(function))


def _failed(error: ForetokenError) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


async def _disconnected(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def service_of(http: Request) -> Service:  # what is not async, FastAPI runs in another thread
    """Return the service of the application."""
    return http.app.state.service


ServiceOf = Annotated[Service, Depends(service_of)]
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def needs_key(service: ServiceOf, given: Credentials) -> None:
    """Refuse clients without the key; the admin key opens everything."""
    settings = service.settings
    if settings.api_key is not None and not _is_one_of(given, settings.api_key, settings.admin_key):
        raise _unauthorised("this route needs the API key, as `Authorization: Bearer KEY`")


async def needs_admin_key(service: ServiceOf, given: Credentials) -> None:
    """Refuse clients without the admin key; without such a key nobody may."""
    if not service.settings.uploads:
        raise HTTPException(
            409, "this server has replicas, and an upload would reach one of them alone; name adapters when it starts"
        )
    if service.settings.admin_key is None:
        raise _unauthorised("the server was started without --admin-key, so nobody may load or remove adapters")
    if not _is_one_of(given, service.settings.admin_key):
        raise _unauthorised("this route needs the admin key, as `Authorization: Bearer KEY`")


def _is_one_of(given: HTTPAuthorizationCredentials | None, *keys: str | None) -> bool:
    """Compare in constant time, with all keys; a header is read as Latin-1, whatever its bytes are."""
    said = b"" if given is None else given.credentials.encode("latin-1")
    same = [hmac.compare_digest(said, key.encode()) for key in keys if key is not None]
    return given is not None and any(same)


def _unauthorised(message: str) -> HTTPException:
    return HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


_STATUSES = {
    401: "the key is missing or wrong",
    404: "there is no such adapter",
    408: "the body did not come in time",
    409: "adapters of a server with replicas are named when it starts",
    413: "the body, the request or a document is too long",
    415: "the body is not sent as application/json",
    421: "the server is not called by this name",
    422: "the request is not usable",
    424: "the adapter cannot be read, or the model failed on a document",
    429: "too much is waiting; Retry-After says how long to wait",
    503: "the server is starting or stopping",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": about, "model": ErrorAnswer} for status, about in _STATUSES.items()
}
