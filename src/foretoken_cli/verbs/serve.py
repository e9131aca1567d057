"""`foretoken serve`: answer requests for many adapters of one model over HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from foretoken.errors import ConfigError, quoted
from foretoken.options import option
from foretoken_cli.console import described, flush_results, say
from foretoken_cli.inference import PRECISION, Precision
from foretoken_cli.parser import parse

_MEGABYTE = 10**6


@dataclass(frozen=True, kw_only=True)
class ServeCommand:
    """The arguments of the verb."""

    folders: list[str] | None = option(
        "run folders or adapter folders, each as FOLDER or NAME=FOLDER", None, positional=True
    )
    adapters: Path | None = option("folder whose subfolders are adapters, which are loaded at the start", None)
    model: str | None = option("the pretrained model (default: the one that the first adapter names)", None)
    accept_changed: bool = option(
        "load adapters at the start though the model is not the one they were trained on", False
    )
    host: str = option("address to listen at", "127.0.0.1")
    port: int = option("port to listen at; 0 for any that is free", 8000, at_least=0, at_most=65535)
    api_key: str | None = option("key that clients must send (default: $FORETOKEN_API_KEY, or none)", None)
    admin_key: str | None = option(
        "key for loading and removing adapters (default: $FORETOKEN_ADMIN_KEY, or nobody may)", None
    )
    memory: int = option("megabytes of adapters that stay loaded", 2000, at_least=1, at_most=10**7)
    cache_states: int = option(
        "megabytes of what frozen layers computed of recent documents, for adapters with `layers`",
        0,
        at_least=0,
        at_most=10**7,
    )
    adapter_dtype: Literal["float32", "float16", "bfloat16"] | None = option(
        "type in which adapters are kept; half of float32 takes half of the memory (default: the model's)", None
    )
    precision: Precision = option(PRECISION, "fp32")
    max_error: float | None = option(
        "guarantee that no larger share of an adapter's answers is wrong, where a request does not say",
        None,
        above=0,
        below=1,
    )
    confidence: float | None = option("of the guarantee (default: 0.95)", None, above=0, below=1)
    allowed_hosts: list[str] | None = option(
        "name by which clients call the server, or *.a.com; may be repeated (default: localhost; any with a key)",
        None,
    )
    connections: int = option("at a time; beyond, a silent client makes room", 1000, at_least=10, at_most=10**6)
    cors: list[str] | None = option("origin of web pages that may call the server; may be repeated", None)
    tokens_per_batch: int = option("tokens of a forward pass", 8192, at_least=1, at_most=10**8)
    max_queue: int = option("rows that may wait; more are refused with 429", 2048, at_least=1, at_most=10**7)
    queue_seconds: int = option("how long a request may wait before it is refused", 30, at_least=1, at_most=3600)
    expected_seconds: float = option(
        "a request whose answer would take longer, by the speed of the last full batches, is refused",
        2.0,
        above=0,
        at_most=3600,
    )
    max_documents: int = option("documents of a request", 256, at_least=1, at_most=10**6)
    max_characters: int = option("characters of a document", 2_000_000, at_least=1, at_most=10**9)
    max_body: int = option("megabytes of a request", 8, at_least=1, at_most=10**5)
    max_adapter: int = option("megabytes of an adapter that is uploaded", 2000, at_least=1, at_most=10**7)
    client_seconds: int = option("how long a client may take to send or to read", 30, at_least=1, at_most=3600)
    drain_seconds: int = option("how long to go on answering after SIGTERM", 60, at_least=0, at_most=3600)
    explain: int | None = option(
        "explain answers where clients ask, of documents of up to so many tokens (default: none)",
        None,
        at_least=1,
        at_most=10**6,
    )
    ray: bool = option("serve with replicas on a Ray cluster: that of $RAY_ADDRESS, or one of this machine", False)
    replicas: int = option("processes with an engine each, with --ray", 1, at_least=1, at_most=10_000)


def run(words: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl+C."""
    options = parse(ServeCommand, "serve", words, described(__doc__))
    if options.replicas > 1 and not options.ray:
        raise ConfigError("--replicas needs --ray; without it the server is one process")
    if options.explain:
        import_module("captum")
    from foretoken.inference.guarantee import Limit
    from foretoken.serving.engine import Limits
    from foretoken.serving.http.logs import json_logs
    from foretoken.serving.http.server import serve
    from foretoken.serving.http.settings import ServerSettings

    if options.confidence is not None and options.max_error is None:
        raise ConfigError("--confidence needs --max-error")
    settings = ServerSettings(
        limit=None if options.max_error is None else Limit(options.max_error, options.confidence),
        sources=_sources(options.folders or []),
        model=options.model,
        accept_changed=options.accept_changed,
        adapters=options.adapters,
        memory=options.memory * _MEGABYTE,
        states=options.cache_states * _MEGABYTE,
        adapter_dtype=options.adapter_dtype,
        precision=options.precision,
        host=options.host,
        port=options.port,
        api_key=_key("--api-key", options.api_key, "FORETOKEN_API_KEY"),
        admin_key=_key("--admin-key", options.admin_key, "FORETOKEN_ADMIN_KEY"),
        allowed_hosts=tuple(options.allowed_hosts or ()),
        connections=options.connections,
        cors=tuple(options.cors or ()),
        limits=Limits(
            tokens_per_batch=options.tokens_per_batch,
            rows_waiting=options.max_queue,
            documents=options.max_documents,
            characters=options.max_characters,
            seconds_waiting=options.queue_seconds,
            seconds_expected=options.expected_seconds,
        ),
        body_bytes=options.max_body * _MEGABYTE,
        adapter_bytes=options.max_adapter * _MEGABYTE,
        client_seconds=options.client_seconds,
        drain_seconds=options.drain_seconds,
        explain=options.explain,
    )
    with json_logs():
        if options.ray:
            from foretoken.serving.ray.serve import serve_replicas

            serve_replicas(settings, replicas=options.replicas, say=_say)
        else:
            serve(settings, say=_say)
    return 0


def _sources(folders: Sequence[str]) -> dict[str, Path]:
    """Return the folders by the names that clients will use."""
    adapters: dict[str, Path] = {}
    for folder in folders:
        name, _, named_folder = folder.partition("=")
        is_named = named_folder and not Path(folder).is_dir()  # a sweep's folders have = in their names
        path = Path(named_folder if is_named else folder)
        name = name if is_named else path.resolve().name
        if name in adapters:
            raise ConfigError(f"two adapters are called {quoted(name)}; name one of them, as NAME=FOLDER")
        adapters[name] = path
    return adapters


def _key(name: str, given: str | None, variable: str) -> str | None:
    """Return a key that every client can send: in a header it is letters, digits and signs of ASCII."""
    key = os.environ.get(variable) if given is None else given
    if key is not None and not re.fullmatch("[!-~]+", key):
        what = "has characters other than letters, digits and signs of ASCII" if key else "is empty"
        raise ConfigError(f"{name} or ${variable}: the key {what}; give another, or leave out both")
    return key


def _say(line: str) -> None:
    """Print the address at once: who started the server waits for it."""
    say(line)
    flush_results()
