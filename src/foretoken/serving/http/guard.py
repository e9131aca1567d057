"""What stands between the network and the routes: limits of size and time, request ids, logs, metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretoken.serving.http.logs import requests
from foretoken.serving.http.metrics import Metrics
from foretoken.serving.http.settings import ServerSettings

log = logging.getLogger(__name__)
UPLOADS = "/v1/adapters/"
BODIES = 32  # of the largest size that are held at a time, or more smaller ones
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


class RefusedError(HTTPException):
    """A request that is answered before it reaches a route, or its body is read whole."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, {"connection": "close", **(headers or {})})


class GoneError(Exception):
    """The client has left, or does not take the answer."""


class Guard:
    """Reads a request's body whole before a route sees it, within the limits; uploads of adapters are counted only."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.held = 0  # bytes of the bodies that are in memory, or will be

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and write it down."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, answer = time.perf_counter(), _Answer(scope, receive, send, self.settings.client_seconds)
        scope.setdefault("state", {})["request_id"] = answer.request_id
        size = 0
        try:
            size = self._admitted(scope)
            await self.app(scope, await self._bounded(scope, receive), answer.send)
        except RefusedError as error:
            await answer.refuse(error)
        except GoneError:
            answer.status = 499
        except Exception as error:  # a route's own fault: its message may hold what the client sent
            log.error("a route failed with %s", type(error).__name__)
            log.debug("where it failed", exc_info=True)
            await answer.refuse(RefusedError(500, "the server failed; its log has the request's id"))
        finally:
            self.held -= size
            self._write_down(scope, answer, time.perf_counter() - start)

    def _write_down(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        self.metrics.answered(route, answer.status, seconds)
        fields = {
            "request_id": answer.request_id,
            "method": scope["method"],
            "route": route,
            "status": answer.status,
            "seconds": round(seconds, 6),
        } | scope["state"].get("log", {})
        requests.info("request", extra={"fields": fields})

    def _admitted(self, scope: Scope) -> int:
        """Return the bytes that a body will take of the memory, or refuse it."""
        headers, most = dict(scope["headers"]), self._most(scope)
        length = int(headers.get(b"content-length", b"0"))
        if length > most:
            raise RefusedError(413, f"the body has {length:,} bytes; at most {most:,} are taken")
        if _is_upload(scope):
            return 0
        size = most if b"transfer-encoding" in headers else length
        if size and self.held + size > BODIES * most:
            self.metrics.rejected("bodies")
            raise RefusedError(429, "too many requests are being read; try again later", {"retry-after": "1"})
        self.held += size
        return size

    def _most(self, scope: Scope) -> int:
        return self.settings.adapter_bytes if _is_upload(scope) else self.settings.body_bytes

    async def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        body = _Body(receive, self._most(scope), self.settings.client_seconds)
        if _is_upload(scope):
            return body.next
        try:
            whole = await asyncio.wait_for(body.read_all(), self.settings.client_seconds)
        except asyncio.TimeoutError:
            raise RefusedError(408, f"the body took longer than {self.settings.client_seconds:g} s") from None
        return _replayed(whole, receive)


@dataclass
class _Body:
    """The parts of a body: so many bytes together, within so many seconds without any."""

    receive: Receive
    most: int
    seconds: float
    read: int = 0
    is_whole: bool = False

    async def read_all(self) -> bytes:
        """Return all of it."""
        parts = []
        while not self.is_whole:
            message = await self.next()
            if message["type"] == "http.disconnect":
                raise GoneError
            parts.append(message.get("body", b""))
        return b"".join(parts)

    async def next(self) -> Message:
        """Return the next part."""
        if self.is_whole:
            return await self.receive()
        try:
            message = await asyncio.wait_for(self.receive(), self.seconds)
        except asyncio.TimeoutError:
            raise RefusedError(408, f"nothing of the body came for {self.seconds:g} s; send it again") from None
        self.read += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        if self.read > self.most:
            raise RefusedError(413, f"the body has more than {self.most:,} bytes")
        return message


@dataclass
class _Answer:
    """What is sent back."""

    scope: Scope
    receive: Receive
    sender: Send
    seconds: float
    status: int = 0

    @cached_property
    def request_id(self) -> str:
        """The client's own, or a new one."""
        given = dict(self.scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        return given if _ID.fullmatch(given) else uuid.uuid4().hex

    async def send(self, message: Message) -> None:
        """Send a part, with the request's id in its headers; a client that takes nothing is given up."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], (b"x-request-id", self.request_id.encode())]}
        try:
            await asyncio.wait_for(self.sender(message), self.seconds)
        except asyncio.TimeoutError:
            raise GoneError from None

    async def refuse(self, error: RefusedError) -> None:
        """Answer with an error, and close the connection: the rest of the body is not read."""
        if self.status:  # the answer has begun
            return
        answer = error_answer(error.status_code, error.detail, headers=error.headers)
        await answer(self.scope, self.receive, self.send)


def error_answer(
    status: int, message: str, *, kind: str = "RequestError", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that fails."""
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"].startswith(UPLOADS)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a body that has been read as one message, and then what comes after it."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
