"""XML as a sequence of events that know their lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers import expat

from foretoken.errors import DataError

START, TEXT, END = "start", "text", "end"


class Event(NamedTuple):
    """An element begins or ends, or a piece of text.

    Attributes:
        value: the name of the element, or the text.
    """

    kind: str
    line: int
    value: str
    attributes: Mapping[str, str] = {}


def xml_events(where: str, content: bytes) -> list[Event]:
    """Return the events of a file.

    Raises:
        DataError: malformed XML; the message names line and column.
    """
    parser = expat.ParserCreate()
    events: list[Event] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        events.append(Event(START, parser.CurrentLineNumber, name, attributes))

    def text(value: str) -> None:
        events.append(Event(TEXT, parser.CurrentLineNumber, value))

    def end(name: str) -> None:
        events.append(Event(END, parser.CurrentLineNumber, name))

    parser.StartElementHandler, parser.CharacterDataHandler, parser.EndElementHandler = start, text, end
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DataError(
            f"{where}:{error.lineno}:{error.offset + 1}: malformed XML: {expat.ErrorString(error.code)}; "
            "fetch the file again"
        ) from error
    except (LookupError, ValueError) as error:  # of the encoding that the file names
        raise DataError(f"{where}:1:1: malformed XML: {error}; fetch the file again") from None
    return events
