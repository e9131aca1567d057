"""The examples that readers return for problems that are not one label per text.

All have the attributes of :class:`foretoken.data.documents.Example`, for splits and messages, and ``part``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OUTSIDE = "O"  # the tag of a word outside of entities


def mark_entities(tags: Iterable[str]) -> bool:
    """Tell whether tags are those of IOB2, and not word classes or other tags.

    >>> mark_entities(["O", "B-PER"]), mark_entities(["DET", "NOUN"])
    (True, False)
    """
    return all(tag == OUTSIDE or tag.startswith(("B-", "I-")) for tag in tags)


class Unstratified:
    """An example without a class that splits keep in proportion."""

    @property
    def stratum(self) -> str:
        """The empty text."""
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
    """The words of a sentence or document, and a tag for each: in IOB2, or of words that are no entities."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str
    group: str | None = None  # the document of a sentence
    part: str | None = None
    raw_text: str | None = None  # the text that words were made from

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
        """The source."""
        return self.source


@dataclass(frozen=True)
class QuestionExample(Unstratified):
    """A question about a context; an answer is its first character in the context and the one after its last.

    Without answers the question is unanswerable. Only ``mentions`` can be answers; if they are None, any span can.
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
