"""YAML with the core schema of YAML 1.2: texts, numbers, true, false, null, lists, and groups with texts as keys.

PyYAML reads YAML 1.1, in which ``10:30`` is 630, ``010`` is 8, ``yes`` is true and ``2024-01-01`` a date. Values are
counted while they are read, because ten levels of ten aliases each stand for 10^10 values in half a kilobyte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import yaml

from foretoken.errors import quoted

LONGEST = 1_000_000  # characters
MOST_VALUES = 100_000  # texts, numbers, lists and groups
DEEPEST = 50  # lists and groups within each other
MOST_DIGITS = 40
_TAG = "tag:yaml.org,2002:"


def parse_yaml(text: str) -> Any:
    """Return the values of a YAML text.

    Raises:
        yaml.YAMLError: it is not YAML, or stands for more than the limits above.

    >>> parse_yaml("{a: 010, b: 0x10, c: 1e-3, d: yes, e: 10:30, 8: 2024-01-01}")
    {'a': 10, 'b': 16, 'c': 0.001, 'd': 'yes', 'e': '10:30', '8': '2024-01-01'}
    """
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"it is longer than {LONGEST:,} characters")
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, OverflowError) as error:  # PyYAML's own, of escapes and directives with absurd numbers
        raise yaml.YAMLError(str(error)) from error


@dataclass
class _Extent:
    """The size of a part of a document, its aliases expanded."""

    values: int = 0
    characters: int = 0
    depth: int = 0


class _Loader(yaml.SafeLoader):
    """Counts values while it composes them; an alias counts as the values that it stands for."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - so PyYAML declares it
    yaml_constructors: ClassVar[dict[str | None, object]] = {
        f"{_TAG}map": yaml.SafeLoader.construct_yaml_map,
        f"{_TAG}seq": yaml.SafeLoader.construct_yaml_seq,
        f"{_TAG}str": yaml.SafeLoader.construct_yaml_str,
        None: yaml.SafeLoader.construct_undefined,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.read = _Extent()
        self.level = 0
        self.anchored: dict[int, _Extent] = {}  # by the id of a node that is complete

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a value, a list or a group, and count what is in it."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self.anchored:
                _refuse("an alias stands for something that it is part of", event)
            self._count(self.anchored[id(node)], event)
            return node
        with self._measured() as extent:
            self._count(_Extent(values=1, characters=len(getattr(event, "value", "")), depth=1), event)
            self.level += 1
            node = super().compose_node(parent, index)
            self.level -= 1
        self.anchored[id(node)] = extent
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Turn every key into a text, and refuse duplicates."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value]
        for key in keys:
            if not isinstance(key, yaml.ScalarNode):
                _refuse("a key is a list or a group; expected a text", key)
        twice = [key for key, count in Counter(key.value for key in keys).items() if count > 1]
        if twice:
            _refuse(f"key {quoted(min(twice))} is given twice", node)
        node.value = [(_as_text(key), value) for key, value in node.value]
        return node

    @contextmanager
    def _measured(self) -> Iterator[_Extent]:
        """Yield an extent that is filled in when the ``with`` block ends."""
        extent, before = _Extent(), _Extent(**vars(self.read))
        self.read.depth = self.level
        yield extent
        extent.values = self.read.values - before.values
        extent.characters = self.read.characters - before.characters
        extent.depth = self.read.depth - self.level
        self.read.depth = max(self.read.depth, before.depth)

    def _count(self, more: _Extent, at: yaml.Event) -> None:
        read = self.read
        read.values += more.values
        read.characters += more.characters
        read.depth = max(read.depth, self.level + more.depth)
        if read.depth > DEEPEST:
            _refuse(f"more than {DEEPEST} lists and groups within each other", at)
        if read.values > MOST_VALUES:
            _refuse(f"more than {MOST_VALUES:,} values, an alias counted as what it stands for", at)
        if read.characters > LONGEST:
            _refuse(f"more than {LONGEST:,} characters, an alias counted as what it stands for", at)


def _as_text(key: yaml.ScalarNode) -> yaml.ScalarNode:
    """Return a key of ``8``, ``true`` or ``null`` as that text; a key of an alias may be a value elsewhere."""
    if key.tag == f"{_TAG}merge":
        return key
    return yaml.ScalarNode(f"{_TAG}str", key.value, key.start_mark, key.end_mark)


def _refuse(problem: str, at: yaml.Event | yaml.Node) -> NoReturn:
    mark: Any = at.start_mark
    raise yaml.constructor.ConstructorError(None, None, problem, mark)


def _integer(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _add_scalar(name: str, pattern: str, begins: str, convert: Callable[[str], object]) -> None:
    looks = re.compile(rf"(?:{pattern})\Z")

    def construct(loader: _Loader, node: yaml.ScalarNode) -> object:
        text = loader.construct_scalar(node)
        if not looks.match(text):  # of a value with a tag, such as `!!int x`
            _refuse(f"{quoted(text)} is no {name}", node)
        if name == "int" and len(text) > MOST_DIGITS:
            _refuse(f"a number of {len(text):,} digits", node)
        return convert(text)

    _Loader.add_implicit_resolver(_TAG + name, looks, [*begins, ""] if name == "null" else list(begins))
    _Loader.add_constructor(_TAG + name, construct)


_add_scalar("null", "~|null|Null|NULL|", "~nN", lambda _: None)
_add_scalar("bool", "true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true")
_add_scalar("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", _integer)
_add_scalar(
    "float",
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "-+.0123456789",
    _float,
)
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"<<\Z"), ["<"])
