"""What tasks of generating text share: the markers in their texts, and one row per reference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from foretoken.data.examples import Generation


@dataclass(frozen=True)
class Markers:
    """The new tokens of a task.

    Attributes:
        source: markers that the source texts hold, the one that begins them first.
        target: the marker before the text to generate.
        end: the marker after it.
    """

    source: tuple[str, ...]
    target: str
    end: str

    @property
    def tokens(self) -> tuple[str, ...]:
        """All markers, each once."""
        return tuple(dict.fromkeys((*self.source, self.target, self.end)))


def expand(examples: Iterable[Generation]) -> list[Generation]:
    """Return one example per reference, as tasks with several references are trained on.

    The examples that come from one are a group. Their ids are the old one and the number of the reference.

    >>> [(one.id, one.references) for one in expand([Generation("7", "a | b", ("A b.", "B a."), "x:1")])]
    [('7/0', ('A b.',)), ('7/1', ('B a.',))]
    """
    return [
        replace(example, id=f"{example.id}/{number}", references=(text,), group=example.group or example.id)
        for example in examples
        for number, text in enumerate(example.references)
    ]
