"""YAML with the core schema of YAML 1.2: texts, numbers, true, false, null, lists, and groups with texts as keys.

PyYAML resolves YAML 1.1, in which ``10:30`` is 630, ``010`` is 8, ``yes`` is true and ``2024-01-01`` a date; here it
finds the events alone. What was read is counted, because ten levels of ten aliases each stand for 10^10 values in
half a kilobyte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import yaml

from foretoken.errors import quoted

LONGEST = 1_000_000  # characters
DEEPEST = 50  # lists and groups within each other
_TOO_DEEP = f"more than {DEEPEST} lists and groups within each other"
_MOST_DIGITS = 40
_SCALARS: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("~|null|Null|NULL|", lambda text: None),
    ("true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    ("[-+]?[0-9]+", int),
    ("0o[0-7]+", lambda text: int(text[2:], 8)),
    ("0x[0-9a-fA-F]+", lambda text: int(text, 16)),
    (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda text: float(text.replace(".", ""))),
)


def parse_yaml(text: str, texts: Collection[str] = (), *, of_text: bool = False) -> Any:
    """Return the values of a YAML text; scalars below a key of ``texts``, or all if ``of_text``, are texts or null.

    Raises:
        yaml.YAMLError: it is not YAML, or stands for more than the limits above.

    >>> parse_yaml("{a: 010, b: 0x10, c: 1e-3, d: yes, e: 10:30, 8: 2024-01-01}")
    {'a': 10, 'b': 16, 'c': 0.001, 'd': 'yes', 'e': '10:30', '8': '2024-01-01'}
    >>> parse_yaml("{data.text_column: [010, yes, null], seed: 010}", {"data.text_column"})
    {'data.text_column': ['010', 'yes', None], 'seed': 10}
    """
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"it is longer than {LONGEST:,} characters")
    try:
        value = _YamlReader(text, texts, of_text).document()
    except (ValueError, OverflowError) as error:  # PyYAML's own, of escapes and directives with absurd numbers
        raise yaml.YAMLError(str(error)) from error
    _checked(value)
    return value


class _YamlReader:
    """Makes values of PyYAML's events."""

    def __init__(self, text: str, texts: Collection[str], of_text: bool) -> None:
        self.events: Any = yaml.parse(text, Loader=yaml.SafeLoader)
        self.texts, self.of_text = texts, of_text
        self.anchors: dict[str, Any] = {}  # values that are complete

    def document(self) -> Any:
        next(self.events)  # the stream begins
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        value = self.value(next(self.events), 1)
        next(self.events)  # the document ends
        if not isinstance(further := next(self.events), yaml.StreamEndEvent):
            _refuse("more than one document", further)
        return value

    def value(self, event: Any, depth: int) -> Any:
        if depth > DEEPEST:
            _refuse(_TOO_DEEP, event)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                _refuse("an alias stands for nothing that has ended before it", event)
            return self.anchors[event.anchor]
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            _refuse(f"the tag {quoted(event.tag)}; expected a value without one", event)
        value = self.content(event, depth)
        if event.anchor:
            self.anchors[event.anchor] = value
        return value

    def content(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event, of_text=self.of_text)
        if isinstance(event, yaml.MappingStartEvent):
            return self.group(depth)
        values = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self.value(event, depth + 1))
        return values

    def group(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(key := next(self.events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                _refuse("a key is a list, a group or an alias; expected a text", key)
            if key.value in values:
                _refuse(f"key {quoted(key.value)} is given twice", key)
            outer, self.of_text = self.of_text, self.of_text or key.value in self.texts
            values[key.value] = self.value(next(self.events), depth + 1)
            self.of_text = outer
        merged = values.pop("<<", {})
        return {**merged, **values} if isinstance(merged, dict) else {**values, "<<": merged}


def _checked(value: Any, depth: int = 1, size: int = 0) -> int:
    """Return how many characters and values there are with what was counted before, an alias being what it is of."""
    size += 1 + len(value) if isinstance(value, str) else 1
    if depth > DEEPEST:
        raise yaml.YAMLError(_TOO_DEEP)
    if size > LONGEST:
        raise yaml.YAMLError(f"more than {LONGEST:,} characters and values, an alias counted as what it stands for")
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        size = _checked(part, depth + 1, size)
    return size


def _scalar(event: Any, *, of_text: bool) -> object:
    """Return what a scalar is: quoted or with a tag, a text; else what it looks like, of a text null alone."""
    text = event.value
    convert = next((of for looks, of in _SCALARS[: 1 if of_text else None] if re.fullmatch(looks, text)), str)
    if convert is str or event.tag or not event.implicit[0]:
        return text
    if len(text) > _MOST_DIGITS:
        _refuse(f"a number of {len(text):,} digits", event)
    return convert(text)


def _refuse(problem: str, at: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
