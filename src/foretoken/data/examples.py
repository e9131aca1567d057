"""What readers return for problems that are not one label per text; each remembers where it came from.

All have what splits and messages need: ``id``, ``where``, ``group``, ``part``, ``content`` (all text, by which repeated
examples are found) and ``stratum`` (what splits keep in proportion).
"""

from __future__ import annotations

from dataclasses import dataclass

OUTSIDE = "O"  # the tag of a word of no entity


class Unstratified:
    """An example without anything that splits keep in proportion."""

    @property
    def stratum(self) -> str:
        """Nothing."""
        return ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The stratum."""
        return (self.stratum,)


@dataclass(frozen=True)
class ChoiceExample(Unstratified):
    """A question with its own choices; ``answer`` is the number of the right one."""

    id: str
    text: str
    choices: tuple[str, ...]
    answer: int
    where: str
    group: str | None = None
    part: str | None = None

    @property
    def content(self) -> str:
        """All text."""
        return "\n".join((self.text, *self.choices))


@dataclass(frozen=True)
class TaggedExample(Unstratified):
    """The words of a sentence or document, and a tag for each, in IOB2."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str
    group: str | None = None  # the document of a sentence
    part: str | None = None

    @property
    def content(self) -> str:
        """All text."""
        return " ".join(self.words)


@dataclass(frozen=True)
class CandidateExample(Unstratified):
    """A question, its candidate answers and the documents (``supports``) that tell which one is right."""

    id: str
    question: str
    candidates: tuple[str, ...]
    supports: tuple[str, ...]
    answer: int
    where: str
    group: str | None = None
    part: str | None = None

    @property
    def content(self) -> str:
        """All text."""
        return "\n".join((self.question, *self.candidates, *self.supports))


@dataclass(frozen=True)
class GenerationExample(Unstratified):
    """A source text and the texts that may be generated from it; the first one is trained on by default.

    ``markers`` in the source are new tokens of the task, such as ``<subject>``.
    """

    id: str
    source: str
    references: tuple[str, ...]
    where: str
    group: str | None = None
    part: str | None = None

    @property
    def content(self) -> str:
        """The source, by which two examples are the same."""
        return self.source


@dataclass(frozen=True)
class QuestionExample(Unstratified):
    """A question about a context; an answer is the first character of the context that is of it, and the one after it.

    Without answers the context does not say. ``mentions`` are the only parts that can be answers; None: any part can.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, int], ...]
    where: str
    mentions: tuple[tuple[int, int], ...] | None = None
    group: str | None = None
    part: str | None = None

    @property
    def content(self) -> str:
        """All text."""
        return f"{self.question}\n{self.context}"
