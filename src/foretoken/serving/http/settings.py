"""What the server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from foretoken.inference.guarantee import Limit
from foretoken.serving.folders import MOST_BYTES
from foretoken.serving.requests import Limits


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Addresses, keys and limits.

    Attributes:
        sources: adapters by name, and the folder of each.
        model: the pretrained model; None for the one that the first adapter names.
        accept_changed: load adapters at the start though the model is not the one that they were trained on.
        adapters: a folder whose subfolders are adapters.
        memory: bytes of adapters that stay loaded.
        adapter_dtype: in which their parameters are kept; None for the model's type.
        precision: of the pretrained model: ``fp32``, ``bf16``, ``int8`` or ``auto``.
        host: where it listens.
        port: the same; 0 for any that is free.
        api_key: what clients must send; None for no key.
        admin_key: what those must send who load and remove adapters; None: nobody can.
        allowed_hosts: names by which it may be called; none: those of this machine, and any with a key.
        cors: origins of web pages that may call the server.
        limits: of the engine.
        body_bytes: of a request.
        adapter_bytes: of an adapter's files.
        client_seconds: within which a client must have sent a request, and taken each part of the answer.
        connections: at a time; one more takes the place of one whose client keeps the server waiting.
        drain_seconds: that requests have to be answered in when the server is told to stop.
        limit: what is guaranteed of answers where a request does not say.
        states: bytes of what the frozen layers computed of recent documents; it stays for later requests.
        explain: tokens of a document whose answer is explained, at most; None: none is.
        uploads: whether adapters may be loaded and removed over HTTP at all.
    """

    sources: dict[str, Path]
    model: str | None = None
    accept_changed: bool = False
    adapters: Path | None = None
    memory: int = 2 * 10**9
    adapter_dtype: str | None = None
    precision: str = "fp32"
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    admin_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    body_bytes: int = 8 * 10**6
    adapter_bytes: int = MOST_BYTES
    client_seconds: float = 30.0
    connections: int = 1000
    drain_seconds: int = 60
    limit: Limit | None = None
    states: int = 0
    explain: int | None = None
    uploads: bool = True
