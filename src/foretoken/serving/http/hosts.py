"""The host names that requests may use, against web pages whose own name resolves to this machine (DNS rebinding)."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from foretoken.errors import ConfigError, quoted
from foretoken.serving.http.settings import ServerSettings

_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d*)?")
_NAME = re.compile(r"\*|(\*\.)?[a-z0-9._-]+|[0-9a-f:.]+")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Hosts:
    """Names that the Host header may have.

    With a key every name is allowed, as no web page of a stranger knows the key. Without a key the names of this
    machine are; and every IP address, where the server listens at more than the loopback address.

    Args:
        settings: ``allowed_hosts`` replaces these rules.

    Raises:
        ConfigError: one of ``allowed_hosts`` is not a host name.

    >>> Hosts(ServerSettings()).allows("localhost:8000"), Hosts(ServerSettings()).allows("a.com")
    (True, False)
    """

    def __init__(self, settings: ServerSettings) -> None:
        names = [_plain(name) for name in settings.allowed_hosts or ()]
        if wrong := [name for name in names if not _NAME.fullmatch(name)]:
            raise ConfigError(f"--allowed-hosts: got {quoted(wrong[0])}; expected a name like example.com, or *.a.com")
        bound = _plain(settings.host)
        self._allows_all = "*" in names or not (names or settings.api_key is None)
        address = _address(bound)
        self._allows_addresses = not names and not (bound == "localhost" if address is None else address.is_loopback)
        self._names = {*names, *_LOOPBACK, bound, *([socket.gethostname().lower()] if self._allows_addresses else [])}

    def allows(self, header: str | None) -> bool:
        """Tell whether a Host header is allowed; a missing one is, as browsers always send it."""
        if header is None or self._allows_all:
            return True
        if (match := _HEADER.fullmatch(header)) is None:
            return False
        name = _plain(match[1])
        wild = {f"*{name[start:]}" for start, letter in enumerate(name) if letter == "."}
        return bool(self._names & {name, *wild}) or (self._allows_addresses and _address(name) is not None)


def _plain(name: str) -> str:
    """Return an address in its short form, and a name in small letters."""
    bare = name.strip("[]").lower()
    return str(_address(bare) or bare)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
