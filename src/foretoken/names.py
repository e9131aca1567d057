"""Names that become folders: legal on Linux, macOS and Windows, and never a path out of the folder they lie in."""

from __future__ import annotations

import re

from foretoken.errors import ConfigError, quoted

LONGEST = 150  # characters, counted as bytes of UTF-8: file systems end at 255, and files beside it add to a name
_FORBIDDEN = '<>:"/\\|?*'
_OF_WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # devices, whatever they end in


def check_name(name: str, *, what: str) -> None:
    r"""Refuse a name that cannot be one folder's on every system.

    Letters, digits, spaces and other printable characters are welcome, except for ``< > : " / \ | ? *``.

    Args:
        name: the name of one folder, not a path.
        what: the key or option that holds it, for the message.

    Raises:
        ConfigError: the name cannot be used.

    >>> check_name("learning_rate=0.001,seed=1", what="name")
    >>> check_name("../elsewhere", what="name")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: name: got '../elsewhere', which begins with a dot; expected a plain folder name
    """
    problem = _problem(name)
    if problem:
        raise ConfigError(f"{what}: got {quoted(name)}, which {problem}; expected a plain folder name")


def plain_name(text: str) -> str:
    """Return the text as a name that `check_name` takes: what it refuses becomes ``_``, and the end is cut off.

    >>> plain_name("what? me (2)"), plain_name("..")
    ('what_ me (2)', '_')
    """
    name = "".join("_" if _is_forbidden(character) else character for character in text)
    name = name.encode()[:LONGEST].decode(errors="ignore").lstrip(" .").rstrip(" .")
    return f"_{name}" if not name or _problem(name) else name


def _problem(name: str) -> str | None:
    forbidden = next(filter(_is_forbidden, name), None)
    checks = {
        "is empty": not name,
        "begins with a dot": name.startswith("."),
        f"holds the character {forbidden!r}": forbidden is not None,
        "begins or ends with a space": name != name.strip(),
        "ends with a dot": name.endswith("."),
        "is the name of a device on Windows": _OF_WINDOWS.fullmatch(name) is not None,
        f"is longer than {LONGEST} characters": len(name.encode(errors="replace")) > LONGEST,
    }
    return next((problem for problem, is_so in checks.items() if is_so), None)


def _is_forbidden(character: str) -> bool:
    return character in _FORBIDDEN or not character.isprintable()
