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
        truncated: whether the prompt was longer than is read of a source.
    """

    text: str
    reason: Reason
    prompt_tokens: int
    new_tokens: int
    truncated: bool = False


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
        ids, truncated = prompt_tokens(adapter, document)
        self._check_room(adapter, len(ids))
        heard = document.heard if isinstance(document, Prompt) else None
        context = () if adapter.writes_apart else tuple(ids)
        continuation = Continuation(
            self.sampling, adapter.ends, adapter.settings.tokenizer, context, heard, last=adapter.last
        )

        def finish(results: list[Tensor]) -> Completed:
            text = continuation.text_of(results[0].tolist())
            return Completed(text.text, text.reason or "length", len(ids), text.num_tokens, truncated)

        return Prepared([{"input_ids": ids}], len(ids), finish, continuation)

    def _check_room(self, adapter: Adapter, prompt: int) -> None:
        wanted, room = self.sampling.max_tokens, adapter.settings.max_length
        if adapter.writes_apart:
            if prompt > room:
                raise TooLongError(f"the prompt has {prompt:,} tokens; {adapter.name!r} reads {room:,}")
            if adapter.most_tokens is not None and wanted > adapter.most_tokens:
                raise TooLongError(f"max_tokens is {wanted:,}; {adapter.name!r} writes at most {adapter.most_tokens:,}")
        elif prompt + wanted > room:
            raise TooLongError(
                f"the prompt has {prompt:,} tokens and {wanted:,} are to follow (max_tokens); "
                f"{adapter.name!r} takes {room:,} together"
            )


def prompt_tokens(adapter: Adapter, document: Document) -> tuple[list[int], bool]:
    """Return the tokens of a prompt, as the tokenizer frames a text, and whether a source was cut as in training.

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
    ids, truncated = text_tokens(adapter, given) if isinstance(given, str) else (list(given), False)
    if not ids or min(ids) < 0:
        raise DataError("the prompt has no tokens; expected some, none of them negative")
    refuse_without_embedding([ids], adapter.settings.rules)
    return ids, truncated


def text_tokens(adapter: Adapter, text: str) -> tuple[list[int], bool]:
    """Return a prompt's tokens: a source and what follows it in training, or the text as the tokenizer frames it."""
    if not adapter.reads_sources or not text.strip():
        return list(adapter.settings.tokenizer(text)["input_ids"]), False
    columns, truncation = adapter.problem.encode(PlainTable({"source": [text]}), adapter.settings)
    return list(columns["input_ids"][0]), bool(truncation.truncated)
