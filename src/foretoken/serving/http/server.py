"""The server: uvicorn, with an engine that is made while it answers that it is not ready yet."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from foretoken.errors import ConfigError, ForetokenError, one_line
from foretoken.inference.base_model import base_model_of
from foretoken.inference.shared_base import SharedBase
from foretoken.lengthening import short_name
from foretoken.memory import keep_few_primitives
from foretoken.serving.bank import MixedBank
from foretoken.serving.engine import Engine
from foretoken.serving.folders import check_name, checked_folder
from foretoken.serving.http.app import make_app
from foretoken.serving.http.metrics import Metrics
from foretoken.serving.http.service import Service
from foretoken.serving.http.settings import ServerSettings
from foretoken.serving.store import Store

log = logging.getLogger(__name__)


def serve(settings: ServerSettings, *, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; then answer what was accepted.

    Args:
        settings: what to serve, and where.
        say: prints the address, when requests are answered.

    Raises:
        ConfigError: the address is taken, or there is nothing to serve.
        AdapterError: one of the adapters named cannot be loaded.
        BackboneError: the pretrained model cannot be loaded.
    """
    source = checked(settings)
    with listening_socket(settings) as listening:
        host, port = listening.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        _Serving(settings, source, address, say).run(listening)


def start_engine(settings: ServerSettings, source: str, metrics: Metrics) -> Engine:
    """Return a running engine with the adapters that were named, and those of the folder that can be loaded.

    Raises:
        AdapterError: one that was named cannot be loaded.
        BackboneError: the pretrained model cannot be loaded.
    """
    keep_few_primitives()
    base = SharedBase(source, settings.precision)
    store = Store(base, MixedBank(base, settings.adapter_dtype), memory=settings.memory)
    for name, folder in settings.sources.items():
        store.add(name, folder, accept_changed=settings.accept_changed)
    for folder in [] if settings.adapters is None else sorted(settings.adapters.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in settings.sources:
            _add(store, folder, accept_changed=settings.accept_changed)
    return Engine(store, limits=settings.limits, observer=metrics).start()


def _add(store: Store, folder: Path, *, accept_changed: bool) -> None:
    """Load an adapter that nobody has named: where it cannot be, the others are served."""
    try:
        store.add(folder.name, folder, accept_changed=accept_changed)
    except ForetokenError as error:
        log.warning("adapter %s is not loaded: %s", folder.name, one_line(str(error)))


class _Serving:
    """One run of the server."""

    def __init__(self, settings: ServerSettings, source: str, address: str, say: Callable[[str], None]) -> None:
        self.settings, self.source, self.address, self.say = settings, source, address, say
        self.service = Service(settings, Metrics())
        self.failure: BaseException | None = None
        self.server = uvicorn.Server(uvicorn_config(settings, self.service))

    def run(self, listening: socket.socket) -> None:
        """Serve until told to stop."""
        before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
        starting = Thread(target=self._start, name="foretoken-start", daemon=True)
        try:
            starting.start()
            self.server.run(sockets=[listening])
        finally:
            starting.join()
            self.service.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.failure is not None:
            raise self.failure

    def _start(self) -> None:
        """Load the model while the server says that it is starting."""
        try:
            engine = start_engine(self.settings, self.source, self.service.metrics)
            self.service.engine = engine
            count = len(engine.store.names)
            noun = "adapter" if count == 1 else "adapters"
            base = engine.store.base_name
            self.say(f"serving {count} {noun} of {base} in {engine.store.base.precision} at {self.address}")
        except BaseException as error:
            self.failure, self.server.should_exit = error, True


class Protocol(H11Protocol):
    """uvicorn's, with a limit on the time that a request's head takes: it has none of its own."""

    seconds = 30.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request from now on."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest where a head is not whole yet."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()


def uvicorn_config(settings: ServerSettings, service: Service) -> uvicorn.Config:
    """Return how uvicorn runs the application."""
    protocol: Any = type("Protocol", (Protocol,), {"seconds": settings.client_seconds})
    return uvicorn.Config(
        make_app(service),
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=settings.connections,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=settings.drain_seconds,
    )


def checked(settings: ServerSettings) -> str:
    """Return where the pretrained model loads from; look at everything that takes no time to look at.

    Raises:
        AdapterError: a folder holds no usable adapter.
        ConfigError: there is nothing to serve, or adapters of two models.
    """
    if settings.adapters is not None and not settings.adapters.is_dir():
        raise ConfigError(f"--adapters: {settings.adapters} is not a folder; make it, or name another")
    named: dict[str, str] = {}
    for name, folder in settings.sources.items():
        check_name(name)
        place = checked_folder(folder)
        if settings.model is None:
            named[name] = base_model_of(place)
    if settings.model is not None:
        return settings.model
    if not named:
        raise ConfigError("nothing to serve: name a run or an adapter, or --model for adapters that come later")
    (first, source), *others = named.items()
    for name, other in others:
        if short_name(other) != short_name(source):
            raise ConfigError(
                f"{first} is an adapter of {source} and {name} of {other}; a server has one model, start another"
            )
    return source


def listening_socket(settings: ServerSettings) -> socket.socket:
    """Return a socket at the address of the settings.

    Raises:
        ConfigError: it is taken.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        where = f"{settings.host}:{settings.port}"
        raise ConfigError(f"cannot listen at {where}: {reason}; choose another --host or --port") from error
    return listening


def _ignore(*_: object) -> None:
    """Let uvicorn raise the signal again when it has stopped, without ending the process by it."""
