"""What stands between the network and the routes: limits of size and time, request ids, logs, metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foretoken.serving.http.logs import requests
from foretoken.serving.http.metrics import Metrics
from foretoken.serving.http.settings import ServerSettings

log = logging.getLogger(__name__)
UPLOADS = "/v1/adapters/"
BODIES = 32  # of the largest size that are held at a time, or more smaller ones
_LONGEST = 1000  # characters of a message
_DRAINED, _DRAIN_SECONDS = 64 * 10**6, 5.0  # of a refused body: a client that still sends would not read the answer
_LOOPBACK = ("localhost", "ip6-localhost")
_BEARER = {"www-authenticate": "Bearer"}
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


class RefusedError(HTTPException):
    """A request that is answered before it reaches a route, or its body is read whole."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, {"connection": "close", **(headers or {})})


class GoneError(Exception):
    """The client has left, or does not take the answer."""


class Guard:
    """Reads a request's body whole before a route sees it, within the limits; uploads of adapters are counted only."""

    def __init__(
        self, app: ASGIApp, *, settings: ServerSettings, metrics: Metrics, routes: Sequence[BaseRoute] = ()
    ) -> None:
        self.app, self.settings, self.metrics, self.routes = app, settings, metrics, routes
        self.held = 0  # bytes of the bodies that are in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and write it down."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, answer = time.perf_counter(), _Answer(scope, receive, send, self.settings.client_seconds)
        scope.setdefault("state", {})["request_id"] = answer.request_id
        body = _Body(receive, self._most(scope), self.settings.client_seconds, self._hold)
        try:
            self._admit(scope)
            await self.app(scope, await self._bounded(scope, body), answer.send)
        except RefusedError as error:
            await answer.refuse(error)
        except GoneError:
            answer.status = 499
        except Exception as error:  # a route's own fault: its message may hold what the client sent
            log.error("a route failed with %s", type(error).__name__)
            log.debug("where it failed", exc_info=True)
            await answer.refuse(RefusedError(500, "the server failed; its log has the request's id"))
        finally:
            self.held -= body.held
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

    def _admit(self, scope: Scope) -> None:
        """Refuse a request by its head, before a byte of its body is read."""
        headers, most = dict(scope["headers"]), self._most(scope)
        if not self._is_host(headers.get(b"host", b"").decode("latin-1")):
            raise RefusedError(421, "this server has another name; --allowed-hosts adds one")
        length = int(headers.get(b"content-length", b"0"))
        has_body = scope["method"] == "POST" or b"transfer-encoding" in headers or length > 0
        if has_body and self.routes and not any(route.matches(scope)[0] == Match.FULL for route in self.routes):
            raise RefusedError(404, "there is no such route")
        if has_body and not self._has_key(scope, headers.get(b"authorization", b"")):
            raise RefusedError(401, "this server needs its key, as `Authorization: Bearer KEY`", _BEARER)
        if length > most:
            raise RefusedError(413, f"the body has {length:,} bytes; at most {most:,} are taken")

    def _is_host(self, header: str) -> bool:
        """Say whether a request is for this server, and not for a name that somebody else leads here (DNS rebinding).

        An address cannot be led elsewhere, and a server with a key has none for strangers.
        """
        allowed = self.settings.allowed_hosts
        if "*" in allowed or not header or (self.settings.api_key is not None and not allowed):
            return True
        host = (urlsplit(f"//{header}").hostname or "").lower()
        return host in {*_LOOPBACK, self.settings.host.lower(), *map(str.lower, allowed)} or _is_address(host)

    def _has_key(self, scope: Scope, header: bytes) -> bool:
        keys = [self.settings.admin_key] if _is_upload(scope) else [self.settings.api_key, self.settings.admin_key]
        if self.settings.api_key is None and not _is_upload(scope):
            return True
        said = header.partition(b" ")[2].strip()
        same = [hmac.compare_digest(said, key.encode()) for key in keys if key is not None]  # all, in constant time
        return any(same)

    def _hold(self, size: int) -> None:
        """Count bytes of a body that have come."""
        if self.held + size > BODIES * self.settings.body_bytes:
            self.metrics.rejected("bodies")
            raise RefusedError(429, "too many requests are being read; try again later", {"retry-after": "1"})
        self.held += size

    def _most(self, scope: Scope) -> int:
        return self.settings.adapter_bytes if _is_upload(scope) else self.settings.body_bytes

    async def _bounded(self, scope: Scope, body: _Body) -> Receive:
        if _is_upload(scope):
            return body.next
        try:
            whole = await asyncio.wait_for(body.read_all(), self.settings.client_seconds)
        except asyncio.TimeoutError:
            raise RefusedError(408, f"the body took longer than {self.settings.client_seconds:g} s") from None
        return _replayed(whole, body.receive)


@dataclass
class _Body:
    """The parts of a body: so many bytes together, within so many seconds without any."""

    receive: Receive
    most: int
    seconds: float
    hold: Callable[[int], None]
    read: int = 0
    held: int = 0
    is_whole: bool = False

    async def read_all(self) -> bytes:
        """Return all of it."""
        parts = []
        while not self.is_whole:
            message = await self.next()
            if message["type"] == "http.disconnect":
                raise GoneError
            part = message.get("body", b"")
            self.hold(len(part))
            self.held += len(part)
            parts.append(part)
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
        """Answer with an error, and close the connection; the rest of the body is read for a while."""
        if self.status:  # the answer has begun
            return
        answer = error_answer(error.status_code, error.detail, headers=error.headers)
        await self.send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
        await self.send({"type": "http.response.body", "body": answer.body, "more_body": True})
        if b"expect" not in dict(self.scope["headers"]):  # its client waits to be told to send a body
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._drain(), _DRAIN_SECONDS)
        await self.send({"type": "http.response.body", "body": b""})

    async def _drain(self) -> None:
        left = _DRAINED
        while left > 0:
            message = await self.receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body"):
                return


def error_answer(
    status: int, message: str, *, kind: str = "RequestError", headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that fails."""
    message = message[:_LONGEST].encode("utf-8", "replace").decode()  # it may hold half of what a client sent
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status, headers)


def wrong_places(errors: Sequence[Any]) -> str:
    """Say where a request is wrong, without what it held."""
    places = [".".join(str(part) for part in item["loc"] if part != "body") or "body" for item in errors[:3]]
    return "; ".join(f"{place}: {item['msg']}" for place, item in zip(places, errors, strict=False))


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


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
