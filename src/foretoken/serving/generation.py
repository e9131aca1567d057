"""Texts that go on from prompts: each row of a batch has its own settings, its own chance and its own end.

Shapes: B rows, N tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from foretoken.backbones.base import Backbone
from foretoken.quiet import quiet_transformers
from foretoken.training.tokens.encode import TokenRow, padded

Generate: TypeAlias = Callable[..., Tensor]
Reason: TypeAlias = Literal["stop", "length"]
_NO_END = -1  # transformers' own end of a text; rows end by themselves
_CONTEXT = 5  # tokens before a text that tell how its first ones are written
_INCOMPLETE = "\ufffd"


@dataclass(frozen=True)
class Sampling:
    """How a text goes on.

    Attributes:
        max_tokens: of the text, the one that ends it included.
        temperature: 0 for the likeliest token at every step.
        top_p: the likeliest tokens with so much of the probability are drawn from.
        top_k: and no more of them than this; 0 for any number.
        stop: texts that end it, and are left out.
        seed: of the row's chance.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Continuation:
    """What a row of a batch is to become.

    Attributes:
        sampling: how it goes on.
        ends: the tokens that end a text.
        tokenizer: writes it.
        context: the prompt's last tokens; none where an encoder has read it, and the text begins anew.
        heard: is called on the engine's thread at every step with the whole text so far.
        last: the token that the model gives to the last place, whatever there would be (``forced_eos_token_id``).
    """

    sampling: Sampling
    ends: frozenset[int]
    tokenizer: PreTrainedTokenizerBase
    context: tuple[int, ...] = ()
    heard: Callable[[str], None] | None = None
    last: int | None = None

    def text_of(self, tokens: Iterable[int] = ()) -> GeneratedText:
        """Return the text of the tokens that follow."""
        text = GeneratedText(self)
        for token in tokens:
            text.add(token)
        return text


@dataclass
class GeneratedText:
    """The text of tokens as they come.

    Attributes:
        text: what is certain by now.
        reason: why it ended, ``stop`` or ``length``; None while it goes on.
        num_tokens: that were given.
    """

    continuation: Continuation
    text: str = ""
    reason: Reason | None = None
    num_tokens: int = 0
    _ids: list[int] = field(default_factory=list)
    _start: int = 0  # tokens from here to `_read` are written already; they tell how the next ones are written
    _read: int = 0
    _held: str = ""  # may be the beginning of a text that ends it

    def __post_init__(self) -> None:
        """Begin behind the prompt."""
        self._ids = list(self.continuation.context[-_CONTEXT:])
        self._read = len(self._ids)

    def add(self, token: int) -> None:
        """Take the next token."""
        sampling, is_end = self.continuation.sampling, token in self.continuation.ends
        self.num_tokens += 1
        if not is_end:
            self._ids.append(token)
        is_last = is_end or self.num_tokens >= sampling.max_tokens
        self._held += self._written(whole=is_last)
        stops = [place for text in sampling.stop if (place := self._held.find(text)) >= 0]
        kept = max((_overlap(self._held, text) for text in sampling.stop), default=0)
        is_forced = is_last and token == self.continuation.last and self.num_tokens >= sampling.max_tokens
        if stops or (is_end and not is_forced):
            self.reason = "stop"
        elif is_last:
            self.reason = "length"
        certain = min(stops) if stops else len(self._held) - (0 if is_last else kept)
        self.text, self._held = self.text + self._held[:certain], self._held[certain:]

    def _written(self, *, whole: bool = False) -> str:
        """Return what the last tokens add, as soon as they are whole letters."""
        before = self._decode(self._ids[self._start : self._read])
        after = self._decode(self._ids[self._start :])
        if len(after) <= len(before) or (after.endswith(_INCOMPLETE) and not whole):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text = self.continuation.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


@dataclass(frozen=True)
class WantedText:
    """A row of a batch that is to go on.

    Attributes:
        row: the prompt.
        adapter: with which.
        continuation: what it is to become.
        given_up: whether nobody waits for it any more.
    """

    row: TokenRow
    adapter: str
    continuation: Continuation
    given_up: Callable[[], bool]


@dataclass(frozen=True)
class Reading:
    """How a model reads prompts.

    Attributes:
        has_encoder: of their own, before a text; else the text goes on from them.
        first_is_global: their first token sees all others (LED).
    """

    has_encoder: bool = False
    first_is_global: bool = False

    @classmethod
    def of(cls, config: PretrainedConfig, backbone: Backbone) -> Reading:
        """Return how a model of this family does it."""
        return cls(bool(config.is_encoder_decoder), backbone.first_token_is_global)

    def inputs(self, prompts: Sequence[Sequence[int]], pad: int) -> dict[str, Tensor]:
        """Return the batch, padded behind the prompts for an encoder, and before them where the texts go on."""
        masks = [[1] * len(prompt) for prompt in prompts]
        if not self.has_encoder:
            ids = padded([prompt[::-1] for prompt in prompts], pad).flip(1)
            return {"input_ids": ids, "attention_mask": padded(masks, 0).flip(1)}
        found = {"input_ids": padded(prompts, pad), "attention_mask": padded(masks, 0)}
        if self.first_is_global:
            found["global_attention_mask"] = torch.zeros_like(found["input_ids"]).index_fill(1, torch.tensor([0]), 1)
        return found


def generate(run: Generate, wanted: Sequence[WantedText], reading: Reading) -> list[Tensor]:
    """Return the tokens that follow each of the rows; nan for a row of which the model makes no finite numbers.

    Args:
        run: transformers' ``generate``, which takes the adapters' names as well.
        wanted: the rows.
        reading: how the model reads them.
    """
    continuations = [one.continuation for one in wanted]
    tokenizer = continuations[0].tokenizer
    steps = RowSteps(continuations, [one.given_up for one in wanted])
    pad: Any = tokenizer.pad_token_id
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=max(one.sampling.max_tokens for one in continuations),
        pad_token_id=pad,
        eos_token_id=_NO_END,
        use_cache=True,
    )
    with quiet_transformers():
        run(
            **reading.inputs([one.row["input_ids"] for one in wanted], pad),
            adapter_names=[one.adapter for one in wanted],
            generation_config=settings,
            logits_processor=LogitsProcessorList([steps.chooser]),
            stopping_criteria=StoppingCriteriaList([steps.ender]),
        )
    return steps.results()


def fitting(lengths: Sequence[int], new_tokens: Sequence[int], positions: int | None) -> list[list[int]]:
    """Return the numbers of the rows that run together.

    A row that is over goes on in step with the others of its batch, and must not run out of the model's positions.

    >>> fitting([3, 60, 5], [50, 4, 4], 64)
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    if positions is None:
        return [order]
    found: list[list[int]] = []
    for number in order:
        for batch in found:
            if lengths[batch[0]] + max(new_tokens[other] for other in (*batch, number)) <= positions:
                batch.append(number)
                break
        else:
            found.append([number])
    return found


class RowSteps:
    """What happens to the rows of a batch at every step: each chooses its token, and goes on or ends."""

    def __init__(self, continuations: Sequence[Continuation], given_up: Sequence[Callable[[], bool]]) -> None:
        self.continuations, self.given_up = continuations, given_up
        self.tokens: list[list[int]] = [[] for _ in continuations]
        self.texts = [one.text_of() for one in continuations]
        self.choices = [TokenChoice(one.sampling) for one in continuations]
        self.is_damaged = [False] * len(continuations)
        self.is_over = [False] * len(continuations)
        self.chooser, self.ender = _Chooser(self), _Ender(self)

    def choose(self, ids: Tensor, scores: Tensor) -> Tensor:
        """(B, V) -> (B, V) where the likeliest token is the one that the row has chosen."""
        chosen = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        for row, every in enumerate(scores):
            if self.is_over[row]:
                continue
            own = every[: own_size(every)]
            if not torch.isfinite(own.max()):
                self.is_damaged[row] = self.is_over[row] = True
                continue
            one = self.continuations[row]
            if one.last is not None and len(self.tokens[row]) == one.sampling.max_tokens - 1:
                chosen[row] = one.last
                continue
            chosen[row] = self.choices[row](ids[row : row + 1], own[None])
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def end(self, ids: Tensor) -> Tensor:
        """Take the rows' last tokens, and tell which rows are over (B,)."""
        for row, token in enumerate(ids[:, -1].tolist()):
            if self.is_over[row]:
                continue
            self.tokens[row].append(token)
            self.texts[row].add(token)
            self.is_over[row] = self.texts[row].reason is not None or self.given_up[row]()
            if (heard := self.continuations[row].heard) is not None:
                heard(self.texts[row].text)
        return torch.tensor(self.is_over, device=ids.device)

    def results(self) -> list[Tensor]:
        """Return the tokens of each row."""
        return [
            torch.full((1,), torch.nan) if damaged else torch.tensor(tokens)
            for tokens, damaged in zip(self.tokens, self.is_damaged, strict=True)
        ]


def own_size(scores: Tensor) -> int:
    """Return the size of a row's vocabulary: behind it are other adapters' new tokens, which it cannot write.

    >>> own_size(torch.tensor([0.5, torch.finfo(torch.float32).min, 2.0, torch.finfo(torch.float32).min]))
    3
    """
    least = torch.finfo(scores.dtype).min
    if scores[-1] > least:
        return len(scores)
    written = (scores > least).nonzero()
    return int(written[-1]) + 1 if len(written) else len(scores)


class TokenChoice:
    """A row's choice of its next token: the likeliest, or one that is drawn by the row's own chance."""

    def __init__(self, sampling: Sampling) -> None:
        self.is_greedy = sampling.temperature == 0
        self.chance = torch.Generator().manual_seed(sampling.seed)
        self.warpers = LogitsProcessorList()
        if not self.is_greedy and sampling.temperature != 1:
            self.warpers.append(TemperatureLogitsWarper(sampling.temperature))
        if not self.is_greedy and sampling.top_k:
            self.warpers.append(TopKLogitsWarper(sampling.top_k))
        if not self.is_greedy and sampling.top_p < 1:
            self.warpers.append(TopPLogitsWarper(sampling.top_p))

    def __call__(self, ids: Tensor, scores: Tensor) -> int:
        """(1, N) tokens and (1, V) scores -> a token."""
        if self.is_greedy:
            return int(scores.argmax())
        warped: Tensor = self.warpers(ids, scores)  # type: ignore[arg-type]  # any Tensor will do
        probabilities = warped.softmax(-1)
        return int(torch.multinomial(probabilities.cpu(), 1, generator=self.chance))


class _Chooser(LogitsProcessor):
    def __init__(self, steps: RowSteps) -> None:
        self.steps = steps

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(B, N) and (B, V) -> (B, V)."""
        return self.steps.choose(input_ids, scores)


class _Ender(StoppingCriteria):
    def __init__(self, steps: RowSteps) -> None:
        self.steps = steps

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Any:
        """(B, N) -> (B,)."""
        return self.steps.end(input_ids)


def _overlap(text: str, stop: str) -> int:
    """Return how many letters at the end of a text may be the beginning of one that ends it.

    >>> _overlap("to be, o", "or not")
    1
    """
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
