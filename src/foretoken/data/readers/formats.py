"""The format of tables in text files, as far as users set it; the rest is detected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foretoken.data.readers.encodings import AUTO, encoding_error
from foretoken.errors import quoted
from foretoken.options import check_fields, option

SNIFFED = (",", ";", "\t", "|")  # delimiters that are detected
_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}


@dataclass(frozen=True)
class FileFormat:
    r"""The format of a file with delimited columns.

    Raises:
        ConfigError: some values cannot be used.

    >>> FileFormat(delimiter="tab").delimiter
    '\t'
    """

    delimiter: str | None = option(
        "The character between two columns, or comma, semicolon, tab, pipe, space; default: found out.", None
    )
    quoting: Literal["auto", "double", "none"] = option(
        "double: double quotes enclose fields, as in CSV; none: they are characters of the text; auto: none where tabs "
        "or pipes separate the columns, unless the file shows otherwise.",
        AUTO,
    )
    encoding: str = option("The same as data.encoding.", AUTO)
    header: bool = option(
        "Whether the first row names the columns; without it their names are 1, 2 and so on, from left to right.", True
    )
    decimal: Literal["auto", ".", ","] = option(
        "The decimal sign of a regression's labels; auto: a comma where every label has one, but 1,234 and the like.",
        AUTO,
    )

    def __post_init__(self) -> None:
        """Refuse impossible delimiters and unknown encodings."""
        check_fields(
            self, lambda: [error for error in (self._delimiter_error(), encoding_error(self.encoding)) if error]
        )
        object.__setattr__(self, "delimiter", _NAMES.get(self.delimiter or "", self.delimiter))

    def _delimiter_error(self) -> str | None:
        mark = _NAMES.get(self.delimiter or "", self.delimiter)
        if mark is None or (len(mark) == 1 and mark not in '"\r\n'):
            return None
        return f"delimiter: got {quoted(self.delimiter)}, expected one character, or one of {', '.join(_NAMES)}"


def lasting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that hold for later files too, because they cannot be detected.

    >>> lasting({"delimiter": ";", "header": True, "quoting": "none", "encoding": "cp1253"})
    {'quoting': 'none'}
    """
    shown = {"encoding", *(["delimiter"] if values.get("header", True) and values.get("delimiter") in SNIFFED else [])}
    return {name: value for name, value in values.items() if name not in shown and value not in (None, AUTO, True)}
