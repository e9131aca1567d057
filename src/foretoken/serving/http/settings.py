"""The settings of the server."""

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
        sources: the folders of adapters by name.
        model: the pretrained model (default: the one that the first adapter names).
        accept_changed: load adapters at the start though the model is not the one that they were trained on.
        adapters: a folder whose subfolders are adapters.
        memory: bytes of adapters that stay loaded.
        adapter_dtype: of the adapters' parameters (default: the model's dtype).
        precision: of the pretrained model: ``fp32``, ``bf16``, ``int8`` or ``auto``.
        host: the address to listen at.
        port: the port to listen at; 0 for any free one.
        api_key: that clients must send; None for no key.
        admin_key: that clients must send to load and remove adapters; None: nobody may.
        allowed_hosts: allowed Host headers; see :class:`~foretoken.serving.http.hosts.Hosts` for the default.
        cors: origins of web pages that may call the server.
        limits: of the engine.
        body_bytes: of a request, at most.
        adapter_bytes: of an adapter's files, at most.
        client_seconds: within which a client must have sent a request, and received each part of the answer.
        connections: at a time; one more closes one whose client keeps the server waiting.
        drain_seconds: to answer the accepted requests when the server is told to stop.
        limit: guarantee of answers, where a request names none.
        states: bytes of hidden states of recent documents below the adapters, which stay for later requests.
        explain: tokens of a document whose answer may be explained, at most; None: no explanations.
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
