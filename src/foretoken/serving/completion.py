"""Texts that go on from a prompt, as a task of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from foretoken.data.plain_table import PlainTable
from foretoken.data.problems import GENERATION
from foretoken.errors import DataError
from foretoken.serving.adapters import Adapter
from foretoken.serving.errors import TooLongError, WrongTaskError
from foretoken.serving.generation import Continuation, Reason, Sampling
from foretoken.serving.tasks import Document, Kind, Prepared
from foretoken.training.tokens.encode import refuse_without_embedding


@dataclass(frozen=True)
class Prompt(Document):
    """A prompt, and who hears the text that follows it as it grows, on the engine's thread."""

    heard: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Completed:
    """What follows a prompt.

    Attributes:
        text: that follows.
        reason: why it ended: ``stop`` or ``length``.
        prompt_tokens: that were read.
        new_tokens: that were written, the one that ends the text included.
    """

    text: str
    reason: Reason
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class Complete:
    """The text that follows a prompt."""

    sampling: Sampling = field(default_factory=Sampling)
    kind: Kind = "tokens"

    def prepare(self, adapter: Adapter, document: Document) -> Prepared[Completed]:
        """Return the prompt's row.

        Raises:
            WrongTaskError: the adapter writes no texts.
            DataError: the prompt is empty.
            TooLongError: there is no room for it and what is to follow.
        """
        settings = adapter.settings
        ids = prompt_tokens(adapter, document)
        if len(ids) + self.sampling.max_tokens > settings.max_length:
            raise TooLongError(
                f"the prompt has {len(ids):,} tokens and {self.sampling.max_tokens:,} are to follow (max_tokens); "
                f"{adapter.name!r} takes {settings.max_length:,} together"
            )
        heard = document.heard if isinstance(document, Prompt) else None
        continuation = Continuation(self.sampling, adapter.ends, settings.tokenizer, tuple(ids), heard)

        def finish(results: list[Tensor]) -> Completed:
            text = continuation.text_of(results[0].tolist())
            return Completed(text.text, text.reason or "length", len(ids), text.num_tokens)

        return Prepared([{"input_ids": ids}], len(ids), finish, continuation)


def prompt_tokens(adapter: Adapter, document: Document) -> list[int]:
    """Return the tokens of a prompt, as the tokenizer frames a text.

    Raises:
        WrongTaskError: the adapter writes no texts.
        DataError: there are none.
        BackboneError: one of them has no embedding.
    """
    if adapter.problem.name != GENERATION:
        raise WrongTaskError(f"{adapter.name!r} writes no texts: it was trained for {adapter.problem.name}")
    if document.pair is not None:
        raise WrongTaskError(f"{adapter.name!r} reads a prompt, not a pair of texts")
    given = document.text
    ids = text_tokens(adapter, given) if isinstance(given, str) else list(given)
    if not ids or min(ids) < 0:
        raise DataError("the prompt has no tokens; expected some, none of them negative")
    refuse_without_embedding([ids], adapter.settings.rules)
    return ids


def text_tokens(adapter: Adapter, text: str) -> list[int]:
    """Return a prompt's tokens: a source and what follows it in training, or the text as the tokenizer frames it."""
    if not adapter.reads_sources or not text.strip():
        return list(adapter.settings.tokenizer(text)["input_ids"])
    columns, _ = adapter.problem.encode(PlainTable({"source": [text]}), adapter.settings)
    return list(columns["input_ids"][0])
